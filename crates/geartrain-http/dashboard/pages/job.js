// One job: where it is and why, what it carries, each attempt, what it waits for and what waits for it.

import { Refused, ask, askAll, or, url } from '../api.js';
import { jobButtons, removeTag } from '../actions.js';
import { h } from '../dom.js';
import { count, duration, plural, shellWord, time } from '../format.js';
import { icon } from '../icons.js';
import { Raw } from '../json.js';
import { can } from '../session.js';
import { attemptList, attemptsText, historyList, timelineBar } from '../timeline.js';
import {
  badge,
  button,
  card,
  command,
  commands,
  copy,
  facts,
  payload,
  progress,
  queueLink,
  quoteTerm,
  route,
  stateOf,
  table,
  workerLink,
} from '../ui.js';

/** How many neighbours of a job are looked up. */
const NEIGHBOURS_MAX = 25;
/** How much of the output of a running attempt is shown. */
const OUTPUT_MAX = 200;

export default {
  title: (ctx) => (ctx.data?.job ? ctx.data.job.klass : 'Job'),
  filter: (ctx) => ({ jid: ctx.arg }),
  begin(ctx) {
    ctx.state.output = null;
  },

  async load(ctx) {
    const jid = ctx.arg;
    const [job, why, result] = await askAll([
      ['get', { jid }],
      ['why', { jid }],
      ['result', { jid }],
    ]);
    if (job instanceof Refused) {
      const gone = await ask('canceled', { jid }).catch(() => null);
      if (gone) return { gone };
      const kept = or(result, null);
      if (kept) return { kept };
      throw job;
    }
    const near = [...job.dependencies, ...job.dependents].slice(0, NEIGHBOURS_MAX);
    const found = near.length ? await askAll(near.map((other) => ['get', { jid: other }])) : [];
    const neighbours = new Map(near.map((other, index) => [other, or(found[index], null)]));
    return { job, why: or(why, null), result: or(result, null), neighbours };
  },

  view(data, ctx) {
    if (data.gone) return tombstone(data.gone);
    if (data.kept)
      return card(
        'The job is gone, its result is kept',
        {},
        resultFacts(data.kept),
        payload(data.kept.result, { name: 'result', state: ctx.state, rerender: ctx.rerender }),
      );
    const { job, why, result, neighbours } = data;
    const state = stateOf(job);
    const about = job.particulars;
    const reasons =
      why && !['complete'].includes(job.state)
        ? why.reasons.map((reason) => sentence(reason, job)).filter(Boolean)
        : [];
    return [
      h(
        'div.job-head',
        { key: 'head' },
        h(
          'div.row',
          null,
          badge(state),
          job.tracked && h('span.badge.is-tracked', null, icon('tracked'), 'tracked'),
          h(
            'span.row.jid',
            null,
            h('code', null, job.jid),
            button('', () => copy(job.jid), {
              icon: 'copy',
              class: 'quiet',
              label: 'Copy the id of the job',
              title: 'Copy',
            }),
          ),
        ),
        h('div.row.actions', null, jobButtons(job, ctx.done)),
      ),
      card(
        null,
        { class: 'life' },
        timelineBar(job),
        job.state === 'running' && job.progress && h('div.big-progress', null, progress(job.progress)),
      ),
      reasons.length > 0 &&
        card(
          job.state === 'failed' ? 'Why it failed' : job.state === 'running' ? 'What it is doing' : 'Why it waits',
          { class: `why is-${state}` },
          h('ul.reasons', null, reasons),
        ),
      h(
        'div.columns',
        { key: 'columns' },
        h(
          'div.stack-cards.two',
          null,
          card('Payload', {}, payload(job.payload, { name: 'payload', state: ctx.state, rerender: ctx.rerender })),
          result &&
            card(
              'Result',
              { note: h('span', null, `${result.how}${result.code ? `, code ${result.code}` : ''}`) },
              payload(result.result, { name: 'result', state: ctx.state, rerender: ctx.rerender }),
            ),
          ['running', 'stalled'].includes(state) && output(job, ctx),
          card(
            'Attempts',
            { note: attemptsText(job) },
            attemptList(job) ?? h('p.muted.pad', null, 'No worker has had it yet.'),
          ),
          (job.dependencies.length > 0 || job.dependents.length > 0) &&
            card(
              'Dependencies',
              { class: 'flush' },
              neighbourTable('Waits for', job.dependencies, neighbours),
              neighbourTable('Is waited for by', job.dependents, neighbours),
            ),
          card('History', { note: plural(job.history.length, 'entry', 'entries') }, historyList(job)),
        ),
        h(
          'div.stack-cards',
          null,
          card(
            'Details',
            {},
            facts([
              ['Queue', queueLink(job.queue)],
              ['Priority', count(job.priority)],
              ['Retries left', `${count(Math.max(0, job.remaining))} of ${count(job.retries)}`],
              ['Put', time(job.history[0]?.when ?? null, { both: true })],
              ['Due', job.due !== null && time(job.due, { both: true })],
              ['Completed', job.completed !== null && time(job.completed, { both: true })],
              ['Worker', job.lock && workerLink(job.lock.worker)],
              ['Lock expires', job.lock && time(job.lock.expires, { both: true })],
              ['Lock token', job.lock && h('code', null, job.lock.token)],
              [
                'Tags',
                h(
                  'span.tags',
                  null,
                  job.tags.length === 0
                    ? h('span.muted', null, 'none')
                    : job.tags.map((tag) =>
                        h(
                          'span.tag',
                          { key: tag },
                          h('a', { href: `#/jobs?where=${encodeURIComponent(`tag=${quoteTerm(tag)}`)}` }, tag),
                          can('operator') &&
                            h(
                              'button',
                              {
                                type: 'button',
                                'aria-label': `Remove the tag ${tag}`,
                                onclick: () => removeTag(job, tag, ctx.done),
                              },
                              icon('close'),
                            ),
                        ),
                      ),
                ),
              ],
              ['Recurring job', job.spawned_from && h('a.mono', { href: '#/schedules' }, job.spawned_from)],
              ...(about
                ? [
                    [
                      'Unique key',
                      about.unique !== null &&
                        h(
                          'code',
                          null,
                          typeof about.unique === 'string' ? about.unique : JSON.stringify(about.unique),
                        ),
                    ],
                    ['Submissions', about.submissions > 1 && count(about.submissions)],
                    ['Clients that wait', about.attached > 0 && count(about.attached)],
                    ['Timeout', about.timeout !== null && duration(about.timeout)],
                    ['Deadline', about.deadline !== null && time(about.deadline, { both: true })],
                    ['Must start before', about.expires !== null && time(about.expires, { both: true })],
                    [
                      'Backoff',
                      about.backoff &&
                        [
                          duration(about.backoff.first),
                          `times ${about.backoff.factor}`,
                          `to ${duration(about.backoff.max)}`,
                        ].join(', '),
                    ],
                    [
                      'Crashes',
                      (about.crashes > 0 || about.crashes_max !== null) &&
                        `${about.crashes}${about.crashes_max !== null ? ` of ${about.crashes_max}` : ''}`,
                    ],
                    ['Evidence', about.evidence],
                    ['Result is kept', about.keep_result !== null && duration(about.keep_result)],
                    ['If a dependency fails', job.dependencies.length > 0 && about.on_dependency_failure],
                    ['Trace', about.traceparent && h('code', null, about.traceparent)],
                  ]
                : []),
            ]),
          ),
          card('As a command', { class: 'same' }, lines(job)),
        ),
      ),
    ];
  },
};

function tombstone(gone) {
  return card(
    'This job was cancelled',
    {},
    h(
      'div.pad',
      null,
      facts([
        ['Job', h('code', null, gone.jid)],
        ['Klass', gone.klass],
        ['Queue', queueLink(gone.queue)],
        ['It was', badge(gone.was)],
        ['Cancelled', time(gone.when, { both: true })],
        ['By', gone.by],
        ['Because', gone.because],
      ]),
    ),
  );
}

const resultFacts = (kept) =>
  h(
    'div.pad',
    null,
    facts([
      ['Job', h('code', null, kept.jid)],
      ['Ended', kept.ended && time(kept.ended, { both: true })],
      ['How', kept.how],
      ['Group', kept.group],
      ['Message', kept.message],
      ['Kept until', kept.until && time(kept.until, { both: true })],
    ]),
  );

function neighbourTable(label, jids, neighbours) {
  if (jids.length === 0) return null;
  return h(
    'div',
    null,
    h('h3.table-title', null, `${label} ${plural(jids.length, 'job')}`),
    table({
      id: `near-${label[0]}`,
      label,
      rows: jids.slice(0, NEIGHBOURS_MAX),
      rowKey: (jid) => jid,
      columns: [
        {
          label: 'Job',
          class: 'grow',
          cell: (jid) =>
            h(
              'span.stack',
              null,
              h('a.name', { href: route('jobs', jid) }, neighbours.get(jid)?.klass ?? jid),
              h('span.mono.muted', null, jid),
            ),
        },
        {
          label: 'State',
          cell: (jid) => (neighbours.get(jid) ? badge(stateOf(neighbours.get(jid))) : h('span.muted', null, 'gone')),
        },
        { label: 'Queue', class: 'md', cell: (jid) => queueLink(neighbours.get(jid)?.queue ?? null) },
      ],
    }),
  );
}

/** A reason as a sentence, with a link or a command that helps. */
function sentence(reason, job) {
  const item = (state, text, help) =>
    h(
      'li',
      { key: reason.reason },
      h('span', { class: `reason-icon is-${state}` }, icon(state)),
      h('div', null, h('p', null, text), help),
    );
  const jid = (id) => h('a.mono', { href: route('jobs', id) }, id);
  switch (reason.reason) {
    case 'running':
      return item('running', [
        'The worker ',
        workerLink(reason.worker),
        ' has it. Its lock holds until ',
        time(reason.until),
        reason.warned && '; the worker was silent and has been warned',
        '.',
      ]);
    case 'stalled':
      return item('stalled', [
        'The lock of ',
        workerLink(reason.worker),
        ' expired ',
        time(reason.since),
        '. ',
        reason.warned
          ? 'The next worker that asks gets the job.'
          : 'The next worker that asks has this one warned, and gets the job when it stays silent.',
      ]);
    case 'failed':
      return item(
        'failed',
        ['It failed in the group ', h('a', { href: route('failures', reason.group) }, reason.group), ':'],
        h('pre.message', { tabindex: 0, 'aria-label': 'Message' }, reason.message),
      );
    case 'set-aside':
      return item(
        'failed',
        [
          `Its workers died ${plural(reason.crashes, 'time')}, so it is set aside in the group `,
          h('a', { href: route('failures', reason.group) }, reason.group),
          '.',
        ],
        reason.evidence && h('pre.message', { tabindex: 0, 'aria-label': 'Evidence' }, reason.evidence),
      );
    case 'depends-on':
      return item(
        'depends',
        [`It waits for ${plural(reason.count, 'job')}, such as `, jid(reason.jid), `, which is ${reason.state}.`],
        reason.failed &&
          h(
            'p',
            null,
            'A dependency has failed: ',
            jid(reason.failed.jid),
            ` in the group ${reason.failed.group}. Requeue that one, or remove the dependency.`,
          ),
      );
    case 'scheduled':
      return item('scheduled', ['It is due ', time(reason.at, { both: true }), '.']);
    case 'expired':
      return item('failed', ['It must not start after ', time(reason.at, { both: true }), '.']);
    case 'paused':
      return item(
        'paused',
        ['The queue ', queueLink(reason.queue), ' is paused.'],
        'Resume the queue, and workers get its jobs again.',
      );
    case 'concurrency':
      return item('running', [
        `${plural(reason.running, 'job')} of the queue ${reason.running === 1 ? 'runs' : 'run'}, `,
        `and ${count(reason.max)} may run at once: `,
        reason.held
          .slice(0, 3)
          .map((held, index) => [index > 0 && ', ', jid(held.jid), ' by ', workerLink(held.worker)]),
        '.',
      ]);
    case 'rate-limit':
      return item('scheduled', ['The rate limit of the queue lets the next job start ', time(reason.until), '.']);
    case 'no-worker':
      return item(
        'stalled',
        [
          `No worker asks for the klass ${reason.klass} in this queue.`,
          reason.others.length > 0 && ` Workers have announced ${reason.others.join(', ')}.`,
          reason.asked !== null && [' One was here ', time(reason.asked), '.'],
        ],
        command(`geartrain work ${shellWord(job.queue ?? 'QUEUE')} -- ./handler`),
      );
    case 'behind':
      return item('waiting', `${plural(reason.jobs, 'job goes', 'jobs go')} first.`);
    case 'next':
      return item('waiting', 'It is the next: the first worker that asks gets it.');
    case 'complete':
      return null;
    default:
      return item('log', reason.text ?? reason.reason);
  }
}

/** What the running attempt sends, on request: a client that waits is counted, and keeps some jobs alive. */
function output(job, ctx) {
  const { state } = ctx;
  const follow = () => {
    const source = new EventSource(url(`v1/jobs/${encodeURIComponent(job.jid)}/stream`));
    state.output = { source, lines: [], ended: false };
    const add = (kind) => (event) => {
      const raw = new Raw(event.data);
      state.output.lines.push([kind, raw.kind === 'text' ? JSON.parse(raw.text) : raw.text]);
      state.output.lines.splice(0, state.output.lines.length - OUTPUT_MAX);
      ctx.rerender() || source.close();
    };
    source.addEventListener('data', add('data'));
    source.addEventListener('warning', add('warning'));
    const end = () => {
      state.output.ended = true;
      source.close();
      ctx.rerender();
    };
    source.addEventListener('ended', end);
    source.onerror = end;
    addEventListener('hashchange', () => source.close(), { once: true });
    ctx.rerender();
  };
  return card(
    'Output',
    { actions: !state.output && button('Follow', follow, { icon: 'events' }) },
    !state.output
      ? h('p.muted.pad', null, 'What the worker sends while it runs.')
      : state.output.lines.length === 0
        ? h('p.muted.pad', null, state.output.ended ? 'The attempt has ended.' : 'The worker has sent nothing yet.')
        : h(
            'pre.code',
            { tabindex: 0, 'aria-label': 'Output' },
            state.output.lines.map(([kind, text]) => h('span', { class: `out-${kind}` }, `${text}\n`)),
          ),
  );
}

function lines(job) {
  const [word, path] = [shellWord(job.jid), `v1/jobs/${encodeURIComponent(job.jid)}`];
  const all = [
    ['Show', `get ${word}`, 'GET', path],
    ['Why it waits', `why ${word}`, 'GET', `${path}/why`],
    ['Requeue', `requeue ${word}`, 'POST', `${path}/requeue`, {}],
    ['Cancel', `cancel ${word}`, 'DELETE', path],
  ];
  return all.map(([label, cli, method, address, body]) =>
    h(
      'details',
      { key: label, open: label === 'Show' },
      h('summary', null, label),
      commands(cli, method, address, body).map(command),
    ),
  );
}
