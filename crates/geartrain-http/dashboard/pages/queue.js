// One queue: its figures, why it stands still, how long its jobs wait and run, its jobs by state, its limits.

import { ask, askAll, optional, or, query } from '../api.js';
import { pauseQueue, putJob } from '../actions.js';
import { sparkline } from '../charts.js';
import { h } from '../dom.js';
import { compact, count, decimal, duration, plural, shellWord, since, time } from '../format.js';
import { icon } from '../icons.js';
import { prefs, setPref } from '../prefs.js';
import { can } from '../session.js';
import {
  HeldOrder,
  badge,
  button,
  card,
  choice,
  commands,
  confirm,
  empty,
  figure,
  jobColumns,
  quoteTerm,
  route,
  table,
  toast,
} from '../ui.js';
import { SPANS, rateOf, throughput, timing } from './overview.js';
import { nextRuns, rhythm } from './schedules.js';

const TABS = [
  ['waiting', 'Waiting'],
  ['running', 'Running'],
  ['stalled', 'Stalled'],
  ['scheduled', 'Scheduled'],
  ['depends', 'Dependent'],
  ['recurring', 'Recurring'],
  ['failed', 'Failed'],
  ['complete', 'Complete'],
];

const RECURRING = [
  {
    label: 'Recurring job',
    class: 'grow',
    cell: (each) =>
      h(
        'span.stack',
        null,
        h('a.name', { href: '#/schedules' }, each.klass),
        h('span.mono.muted.clip', null, each.jid),
      ),
  },
  { label: 'When', cell: rhythm },
  { label: 'Next runs', cell: nextRuns },
];

const tabOf = (ctx) => (TABS.some(([tab]) => tab === ctx.search.get('tab')) ? ctx.search.get('tab') : 'waiting');

export default {
  title: (ctx) => ctx.arg,
  filter: (ctx) => ({ queue: ctx.arg }),
  begin(ctx) {
    ctx.state.order = new HeldOrder();
  },

  async load(ctx) {
    const [queue, tab] = [ctx.arg, tabOf(ctx)];
    const lists = { waiting: ['peek', { queue, count: 25 }], recurring: ['recurring', { queue }] };
    const list = lists[tab] ?? ['jobs', { queue, state: tab, limit: 25 }];
    const [documents, history] = await Promise.all([
      askAll([['queues', { queue }], ['why', { queue }], ['stats', { queue }], ['limits', { queue }], list]),
      optional(`v1/history${query({ queue, span: prefs.span })}`),
    ]);
    const [queues, why, stats, limits, jobs] = documents.map((document) => or(document, null));
    return { queue: queues?.[0], why, stats, limits, jobs: jobs?.items ?? jobs ?? [], history };
  },

  view({ queue, why, stats, limits, jobs, history }, ctx) {
    if (!queue)
      return card(
        null,
        {},
        empty(
          'queues',
          'There is no such queue',
          'Put a job into it, and it is there.',
          can('operator') && button('Put a job', () => putJob(ctx.arg), { icon: 'plus', class: 'primary' }),
        ),
      );
    const tab = tabOf(ctx);
    const of = history?.queues?.[queue.name];
    const spark = (key, name) => of?.[key]?.length > 1 && sparkline(of[key], '', name);
    const hints = why ? standing(why, queue) : [];
    const { rows, held } = ctx.state.order.of('queue-jobs', jobs, (job) => job.jid);
    const number = {
      waiting: queue.waiting,
      running: queue.running,
      stalled: queue.stalled,
      scheduled: queue.scheduled,
      depends: queue.depends,
      recurring: queue.recurring,
      failed: queue.failed,
    };
    const { jid, state, priority, tags, attempts, when } = jobColumns;
    return [
      h(
        'div.row.head',
        { key: 'head' },
        queue.paused && badge('paused'),
        limits && limitText(limits),
        h('span.grow'),
        can('operator') && [
          button('Put job', () => putJob(queue.name), { icon: 'plus' }),
          button('Limits', () => editLimits(queue.name, limits, ctx.done), { icon: 'settings' }),
          button(queue.paused ? 'Resume' : 'Pause', () => pauseQueue(queue, ctx.done), {
            icon: queue.paused ? 'play' : 'pause',
            class: queue.paused ? 'primary' : '',
          }),
        ],
      ),
      h(
        'div.figures',
        { key: 'figures' },
        figure('Completed', decimal(rateOf(queue, history)), {
          class: 'is-complete',
          note: why ? `per minute, ${plural(why.workers, 'worker')}` : 'per minute',
          spark: spark('completed', 'is-complete'),
        }),
        figure('Waiting', compact(queue.waiting), {
          class: 'is-waiting',
          spark: spark('waiting', 'is-waiting'),
          note: queue.oldest ? h('span', null, 'oldest ', since(queue.oldest)) : 'nothing waits',
        }),
        figure('Running', compact(queue.running + queue.stalled), {
          class: 'is-running',
          spark: spark('running', 'is-running'),
          note: limits?.max_concurrency
            ? `of ${count(limits.max_concurrency)} at once`
            : queue.stalled > 0
              ? `${count(queue.stalled)} stalled`
              : 'no limit',
        }),
        figure('Scheduled', compact(queue.scheduled), {
          class: 'is-scheduled',
          note: why?.next_due ? h('span', null, 'next ', time(why.next_due)) : `${count(queue.recurring)} recurring`,
        }),
        figure('Dependent', compact(queue.depends), {
          class: 'is-depends',
          note: why?.behind_failed ? `${count(why.behind_failed)} behind failed jobs` : 'wait for other jobs',
        }),
        figure('Failed', queue.failed === null ? '–' : compact(queue.failed) + (queue.failed_or_more ? '+' : ''), {
          class: queue.failed > 0 ? 'is-failed' : '',
          spark: spark('failed', 'is-failed'),
          note: stats ? `${count(stats.failures)} today` : null,
        }),
      ),
      hints.length > 0 && card('Why jobs wait', { class: 'why' }, h('ul.reasons', null, hints)),
      of &&
        card(
          'Throughput',
          {
            class: 'wide',
            actions: choice('Span', SPANS, prefs.span, (span) => {
              setPref('span', span);
              ctx.done();
            }),
          },
          throughput(history, of),
        ),
      stats &&
        h(
          'div.columns.even',
          { key: 'stats' },
          timing('Wait, today', stats.wait, 'is-waiting'),
          timing('Run, today', stats.run, 'is-running'),
        ),
      card(
        'Jobs',
        {
          class: 'flush',
          actions:
            tab !== 'recurring' &&
            h(
              'a.more',
              { href: `#/jobs?where=${encodeURIComponent(`queue=${quoteTerm(queue.name)} state=${tab}`)}` },
              'Search these',
            ),
        },
        h(
          'div.tabs',
          { role: 'group', 'aria-label': 'Jobs by state' },
          TABS.map(([name, text]) =>
            h(
              'a',
              {
                key: name,
                href: `${route('queues', queue.name)}?tab=${name}`,
                'aria-current': name === tab ? 'true' : null,
              },
              text,
              number[name] ? h('span.count', null, compact(number[name])) : null,
            ),
          ),
        ),
        jobs.length === 0
          ? empty(tab === 'recurring' ? 'schedules' : tab, `No ${tab === 'depends' ? 'dependent' : tab} jobs`, null)
          : table({
              id: 'queue-jobs',
              label: `Jobs that are ${tab}`,
              rows,
              rowKey: (job) => job.jid,
              columns: tab === 'recurring' ? RECURRING : [jid, state, priority, tags, attempts, when],
            }),
        held > 0 && h('footer.card-foot', null, `${plural(held, 'new job')} when the pointer leaves the table`),
      ),
    ];
  },
};

/** What keeps the jobs of the queue from running, as sentences. */
function standing(why, queue) {
  const reason = (state, ...text) =>
    h('li', null, h('span', { class: `reason-icon is-${state}` }, icon(state)), h('span', null, text));
  const about = why.waiting_examined < queue.waiting ? 'about ' : '';
  return [
    why.paused && reason('paused', 'The queue is paused: workers get none of its jobs.'),
    why.concurrency_max !== null &&
      queue.running >= why.concurrency_max &&
      reason(
        'running',
        `${plural(queue.running, 'job runs', 'jobs run')}, and ${count(why.concurrency_max)} may run at once.`,
      ),
    why.rate_limited_until &&
      reason('scheduled', 'The rate limit lets the next job start ', time(why.rate_limited_until), '.'),
    ...why.unasked.map(({ klass, jobs }) =>
      reason('stalled', `${about}${plural(jobs, 'job')} of klass ${klass}, which no worker asks for.`),
    ),
    why.behind_failed > 0 &&
      reason(
        'failed',
        `${plural(why.behind_failed, 'job')} behind failed dependencies`,
        why.failed_dependency && [
          ', for example ',
          h('a.mono', { href: route('jobs', why.failed_dependency) }, why.failed_dependency),
        ],
        '.',
      ),
    why.workers === 0 &&
      why.asked === null &&
      queue.waiting > 0 &&
      reason('stalled', 'No worker has asked this queue for a job.'),
  ].filter(Boolean);
}

const rateText = (rate) => `${count(rate.count)} per ${duration(rate.per)}`;

const limitText = (limits) => {
  const parts = [
    limits.max_concurrency && `${count(limits.max_concurrency)} at once`,
    limits.rate && rateText(limits.rate),
    limits.max && `${count(limits.max)} unfinished at most`,
  ].filter(Boolean);
  return parts.length > 0 && h('span.limits', null, icon('settings'), `Limits: ${parts.join(', ')}`);
};

function editLimits(queue, limits, done) {
  const rate = limits?.rate
    ? `${limits.rate.count}/${limits.rate.per}s${limits.rate.burst ? `+${limits.rate.burst}` : ''}`
    : '';
  confirm({
    title: `Limits of ${queue}`,
    action: 'Set limits',
    fields: [
      {
        name: 'max_concurrency',
        label: 'Jobs at once',
        value: limits?.max_concurrency ?? '',
        inputmode: 'numeric',
        placeholder: 'no limit',
      },
      { name: 'rate', label: 'Rate', value: rate, placeholder: '100/1m+20', hint: 'So many per time, and a burst.' },
      {
        name: 'max',
        label: 'Unfinished jobs',
        value: limits?.max ?? '',
        inputmode: 'numeric',
        placeholder: 'no limit',
        hint: 'A put beyond it is refused.',
      },
    ],
    commands: commands(
      `limits ${shellWord(queue)} --rate 100/1m --max-concurrency 4`,
      'PUT',
      `v1/queues/${encodeURIComponent(queue)}/limits`,
      { rate: '100/1m', max_concurrency: 4 },
    ),
    run: async ({ max_concurrency: atOnce, rate: often, max }) => {
      if (!atOnce && !often && !max) await ask('limits', { queue, none: true });
      else
        await ask('limits', {
          queue,
          max_concurrency: Number(atOnce || 0),
          ...(often && { rate: often }),
          ...(max && { max: Number(max) }),
        });
      done();
      toast(`The limits of ${queue} are set.`);
    },
  });
}
