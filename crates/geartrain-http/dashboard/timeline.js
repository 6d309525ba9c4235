// The life of a job: phases between the entries of its history, and its attempts.

import { h } from './dom.js';
import { absolute, duration, now, plural, time } from './format.js';
import { icon } from './icons.js';
import { workerLink } from './ui.js';

/** What the reasons of an attempt's end mean. */
const ENDS = {
  retried: 'the worker gave it back, to be tried again',
  'lock-expired': 'its lock expired: the worker was silent for too long',
  deadline: 'it took longer than it may',
  'worker-lost': 'its worker died',
  released: 'its worker was interrupted and gave it back',
  'taken-away': 'it was taken from its worker',
  'put-again': 'the job was put again meanwhile',
  resumed: 'its worker was restarted and locked it again',
};

/** Phases `{state, from, to, worker, attempt}` and attempts `{number, worker, from, to, how, …}`, oldest first. */
export function phasesOf(job) {
  const [phases, attempts] = [[], []];
  const state = job.stalled ? 'stalled' : job.state;
  let open = null;
  const close = (at) => {
    if (open) phases.push({ ...open, to: at });
    open = null;
  };
  const endAttempt = (at, how, more = {}) => {
    const attempt = attempts.at(-1);
    if (attempt && attempt.to === null) Object.assign(attempt, { to: at, how, ...more });
    else if (attempt && more.message && !attempt.message) Object.assign(attempt, more);
  };
  for (const entry of job.history) {
    if (entry.what === 'log' || entry.what === 'other') continue;
    if (entry.what === 'popped') {
      endAttempt(entry.when, 'lost');
      close(entry.when);
      attempts.push({ number: attempts.length + 1, worker: entry.worker, from: entry.when, to: null, how: null });
      open = { state: 'running', from: entry.when, worker: entry.worker, attempt: attempts.length };
      continue;
    }
    if (entry.what === 'put') {
      close(entry.when);
      open = { state: 'waiting', from: entry.when, queue: entry.queue };
      continue;
    }
    const how = { done: 'complete', failed: 'failed' }[entry.what] ?? entry.reason ?? entry.what;
    endAttempt(entry.when, how, { group: entry.group ?? null, message: entry.message ?? null });
    close(entry.when);
    open =
      how === 'complete' || how === 'failed'
        ? { state: how, from: entry.when }
        : { state: 'waiting', from: entry.when };
  }
  if (open && !['complete', 'failed'].includes(open.state)) {
    phases.push({
      ...open,
      state: ['scheduled', 'depends', 'running', 'stalled', 'waiting'].includes(state) ? state : open.state,
      to: null,
    });
  }
  const failed = attempts.at(-1);
  if (failed?.how === 'failed' && job.failure && !failed.message) failed.message = job.failure.message;
  return { phases, attempts, end: open && ['complete', 'failed'].includes(open.state) ? open : null };
}

/** The phases side by side, each as wide as the root of its time, so that a second still shows beside an hour. */
export function timelineBar(job) {
  const { phases, end } = phasesOf(job);
  if (phases.length === 0) return null;
  const widths = phases.map((phase) => Math.sqrt(Math.max(0.2, (phase.to ?? now()) - phase.from)));
  const least = widths.reduce((sum, width) => sum + width, 0) * 0.02;
  const all = widths.map((width) => Math.max(width, least));
  const scale = (end ? 940 : 1000) / all.reduce((sum, width) => sum + width, 0);
  let at = 0;
  const first = phases[0].from;
  const last = end?.from ?? now();
  const bars = phases.map((phase, index) => {
    const [x, width] = [at, all[index] * scale];
    at += width;
    return h('rect', {
      key: index,
      class: `is-${phase.state}${phase.to === null ? ' now' : ''}`,
      x: x + 1,
      y: 4,
      width: Math.max(2, width - 2),
      height: 22,
      rx: 4,
    });
  });
  const text = phases
    .map((phase) => `${phase.state} for ${duration((phase.to ?? now()) - phase.from)}`)
    .join(', then ');
  const total = (name) =>
    phases.filter((phase) => phase.state === name).reduce((sum, phase) => sum + (phase.to ?? now()) - phase.from, 0);
  const states = [...new Set(phases.map((phase) => phase.state))];
  return h(
    'div.timeline',
    null,
    h(
      'svg',
      {
        viewBox: '0 0 1000 30',
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${text}${end ? `, ${end.state}` : ''}`,
      },
      bars,
      end && h('rect', { class: `is-${end.state}`, x: 944, y: 4, width: 55, height: 22, rx: 4 }),
    ),
    h(
      'div.row.spread',
      null,
      h('span.muted.num', { title: absolute(first) }, absolute(first)),
      h(
        'span.row',
        null,
        states.map((state) =>
          h('span.key', { key: state }, h('i.dot', { class: `is-${state}` }), `${state} ${duration(total(state))}`),
        ),
        end && h('span.key', null, h('i.dot', { class: `is-${end.state}` }), end.state),
      ),
      h(
        'span.muted.num',
        { title: absolute(last) },
        end ? `${duration(last - first)} in all` : `${duration(last - first)} so far`,
      ),
    ),
  );
}

export function attemptList(job) {
  const { attempts } = phasesOf(job);
  if (attempts.length === 0) return null;
  return h(
    'ol.attempts',
    null,
    attempts
      .map((attempt) => {
        const state =
          attempt.to === null
            ? job.stalled
              ? 'stalled'
              : 'running'
            : attempt.how === 'complete'
              ? 'complete'
              : attempt.how === 'failed'
                ? 'failed'
                : 'retried';
        return h(
          'li',
          { key: attempt.number },
          h(
            'div.row',
            null,
            h('i.dot', { class: `is-${state}` }),
            h('strong', null, `Attempt ${attempt.number}`),
            h('span', null, 'by ', workerLink(attempt.worker)),
            h('span.grow'),
            h(
              'span.muted.num',
              null,
              attempt.to === null ? duration(Math.max(0, now() - attempt.from)) : duration(attempt.to - attempt.from),
            ),
            time(attempt.from),
          ),
          attempt.to !== null &&
            h(
              'p',
              null,
              attempt.how === 'complete'
                ? 'Completed.'
                : attempt.how === 'failed'
                  ? ['Failed', attempt.group && [' in the group ', h('b', null, attempt.group)], '.']
                  : [
                      `Ended: ${ENDS[attempt.how] ?? attempt.how}`,
                      attempt.group && [', group ', h('b', null, attempt.group)],
                      '.',
                    ],
            ),
          attempt.message &&
            h('pre.message', { tabindex: 0, 'aria-label': `Message of attempt ${attempt.number}` }, attempt.message),
        );
      })
      .reverse(),
  );
}

const ENTRY = {
  put: (entry) => ['waiting', ['Put into ', h('b', null, entry.queue)]],
  popped: (entry) => ['running', ['Popped by ', workerLink(entry.worker)]],
  done: () => ['complete', 'Completed'],
  failed: (entry) => [
    'failed',
    ['Failed in the group ', h('b', null, entry.group), entry.worker && [' by ', workerLink(entry.worker)]],
  ],
  'timed-out': () => ['stalled', 'Its lock expired, or its time was over'],
  'handed-back': (entry) => ['waiting', ['Released by ', workerLink(entry.worker)]],
  crashed: (entry) => ['stalled', ['Its worker ', workerLink(entry.worker), ' died']],
  log: (entry) => ['log', [entry.message, entry.data && h('code', null, JSON.stringify(entry.data))]],
  'attempt-ended': (entry) => [
    'retried',
    [`Attempt ended: ${ENDS[entry.reason] ?? entry.reason}`, entry.group && [' (', h('b', null, entry.group), ')']],
  ],
};

export function historyList(job) {
  const entries = job.history;
  return h(
    'ol.history',
    null,
    entries.map((entry, index) => {
      const [state, text] = ENTRY[entry.what]?.(entry) ?? ['log', entry.what];
      const before = entries[index - 1];
      const gap = before ? entry.when - before.when : 0;
      return h(
        'li',
        { key: index },
        h('span', { class: `reason-icon is-${state}` }, icon(state === 'retried' ? 'retry' : state)),
        h('span.grow', null, text),
        gap >= 1 && h('span.muted.num.sm', { title: 'since the entry before' }, `+${duration(gap)}`),
        time(entry.when),
      );
    }),
  );
}

export const attemptsText = (job) => {
  const { attempts } = phasesOf(job);
  return attempts.length === 0 ? 'none yet' : plural(attempts.length, 'attempt');
};
