// How the whole is doing: throughput, backlog, failures, workers, what comes next.

import { askAll, optional, or, query } from '../api.js';
import { histogram, percentile, sparkline, timeChart } from '../charts.js';
import { h } from '../dom.js';
import { bytes, compact, count, decimal, duration, now, plural, since, time } from '../format.js';
import { icon } from '../icons.js';
import { prefs, setPref } from '../prefs.js';
import { can } from '../session.js';
import { pauseQueue } from '../actions.js';
import {
  HeldOrder,
  badge,
  bar,
  button,
  card,
  choice,
  empty,
  facts,
  figure,
  queueLink,
  route,
  table,
  workerLink,
} from '../ui.js';

const order = new HeldOrder();
export const SPANS = [
  ['10m', '10 min'],
  ['1h', '1 hour'],
  ['24h', '24 hours'],
];

export const SERIES = [
  { name: 'complete', key: 'completed', label: 'Completed', area: true },
  { name: 'put', key: 'put', label: 'Put' },
  { name: 'failed', key: 'failed', label: 'Failed' },
  { name: 'retried', key: 'retried', label: 'Retried' },
];

/** Samples of a history in events per second, whatever the step. */
export const throughput = (history, of) =>
  timeChart({
    label: 'Jobs per second',
    step: history.step,
    until: history.until,
    unit: '/s',
    series: SERIES.map((one) => ({
      ...one,
      values: (of[one.key] ?? []).map((value) => (value === null ? null : value / history.step)),
    })),
  });

/** How long jobs waited or ran: a histogram, and percentiles. */
export function timing(title, { count: number, mean, std, histogram: values }, name) {
  const upTo = (part) => {
    const value = percentile(values, part);
    return value === null ? '–' : `< ${duration(value)}`;
  };
  return card(
    title,
    { note: plural(number, 'job') },
    number === 0
      ? empty('schedules', 'Nothing counted yet', null)
      : [
          histogram({ label: title, values, name }),
          h(
            'dl.measures',
            null,
            [
              ['p50', upTo(0.5)],
              ['p95', upTo(0.95)],
              ['p99', upTo(0.99)],
              ['Mean', duration(mean)],
              ['Deviation', duration(std)],
            ].map(([label, value]) => h('div', { key: label }, h('dt', null, label), h('dd', null, value))),
          ),
        ],
  );
}

/** Completed jobs per minute: as the queue counts them, or by the samples of the last minute. */
export function rateOf(queue, history) {
  const samples = history?.queues?.[queue.name]?.completed;
  if (queue.per_minute !== null || !samples) return queue.per_minute;
  const last = samples.slice(-Math.max(1, Math.round(60 / history.step))).filter((value) => value !== null);
  return last.length === 0 ? null : (last.reduce((sum, value) => sum + value, 0) * 60) / (last.length * history.step);
}

export default {
  title: () => 'Overview',
  filter: () => ({
    event: ['put', 'popped', 'completed', 'failed', 'retried', 'canceled', 'handed-back', 'worker-gone'],
  }),

  async load() {
    const [documents, history, server] = await Promise.all([
      askAll([['queues'], ['failed'], ['workers'], ['recurring']]),
      optional(`v1/history${query({ span: prefs.span, all: true })}`),
      optional('v1/server'),
    ]);
    const [queues, groups, workers, schedules] = documents.map((document) => or(document, []));
    return { queues, groups, workers, schedules, history, server };
  },

  view({ queues, groups, workers, schedules, history, server }, ctx) {
    const sum = (key) => queues.reduce((total, queue) => total + (queue[key] ?? 0), 0);
    const rates = queues.map((queue) => rateOf(queue, history)).filter((rate) => rate !== null);
    const oldest = Math.min(...queues.map((queue) => queue.oldest ?? Infinity));
    const paused = queues.filter((queue) => queue.paused);
    const lost = workers.filter((worker) => worker.stalled > 0);
    const spark = (key, name) => history?.total?.[key]?.length > 1 && sparkline(history.total[key], '', name);
    const failed = groups.reduce((total, group) => total + group.count, 0);
    const busiest = order.of(
      'overview-queues',
      [...queues].sort((one, other) => other.waiting + other.running - one.waiting - one.running),
      (queue) => queue.name,
    );
    const backlogMax = Math.max(1, ...queues.map((queue) => queue.waiting));
    const next = schedules
      .filter((each) => each.next !== null && !each.paused)
      .sort((one, other) => one.next - other.next)
      .slice(0, 6);
    return [
      paused.length > 0 &&
        h(
          'div.notice.warn',
          { key: 'paused' },
          icon('paused'),
          h(
            'div',
            null,
            h('strong', null, `${plural(paused.length, 'queue is', 'queues are')} paused: `),
            paused.map((queue, index) => [index > 0 && ', ', queueLink(queue.name)]),
          ),
          h('span.grow'),
          can('operator') &&
            paused.length === 1 &&
            button('Resume', () => pauseQueue(paused[0], ctx.done), { icon: 'play' }),
        ),
      h(
        'div.figures',
        { key: 'figures' },
        figure('Completed', decimal(rates.length > 0 ? rates.reduce((total, rate) => total + rate, 0) : null), {
          class: 'is-complete',
          note: 'per minute',
          spark: spark('completed', 'is-complete'),
        }),
        figure('Waiting', compact(sum('waiting')), {
          class: 'is-waiting',
          href: '#/jobs?where=state%3Dwaiting',
          note: Number.isFinite(oldest) ? h('span', null, 'oldest ', since(oldest)) : 'nothing waits',
          spark: spark('waiting', 'is-waiting'),
        }),
        figure('Running', compact(sum('running') + sum('stalled')), {
          class: 'is-running',
          href: '#/jobs?where=state%3Drunning',
          note:
            sum('stalled') > 0
              ? h('span.is-stalled.strong', null, `${count(sum('stalled'))} stalled`)
              : plural(workers.length, 'worker'),
          spark: spark('running', 'is-running'),
        }),
        figure('Scheduled', compact(sum('scheduled')), {
          class: 'is-scheduled',
          href: '#/jobs?where=state%3Dscheduled',
          note: `${count(sum('recurring'))} recurring`,
        }),
        figure('Dependent', compact(sum('depends')), {
          class: 'is-depends',
          href: '#/jobs?where=state%3Ddepends',
          note: 'wait for other jobs',
        }),
        figure('Failed', compact(failed), {
          class: failed > 0 ? 'is-failed' : '',
          href: '#/failures',
          note: `${plural(groups.length, 'group')}`,
          spark: spark('failed', 'is-failed'),
        }),
      ),
      card(
        'Throughput',
        {
          class: 'wide',
          actions: choice('Span', SPANS, prefs.span, (span) => {
            setPref('span', span);
            ctx.done();
          }),
        },
        history?.total?.completed?.length > 1
          ? throughput(history, history.total)
          : empty('events', 'No history yet', 'The server samples its rates every few seconds.'),
      ),
      h(
        'div.columns',
        { key: 'columns' },
        card(
          'Queues',
          {
            note: plural(queues.length, 'queue'),
            class: 'two',
            actions: h('a.more', { href: '#/queues' }, 'All queues'),
          },
          queues.length === 0
            ? empty('queues', 'No queues yet', 'A queue is there as soon as a job was put into it.')
            : table({
                id: 'overview-queues',
                label: 'Queues',
                rowKey: (queue) => queue.name,
                rows: busiest.rows.slice(0, 10),
                columns: [
                  {
                    label: 'Queue',
                    class: 'grow',
                    cell: (queue) =>
                      h('span.row.tight', null, queueLink(queue.name), queue.paused && badge('paused')),
                  },
                  {
                    label: 'Backlog',
                    class: 'md bar-cell',
                    cell: (queue) => bar(queue.waiting, backlogMax, `${queue.waiting} waiting`, 'is-waiting'),
                  },
                  { label: 'Waiting', class: 'num', cell: (queue) => compact(queue.waiting) },
                  { label: 'Running', class: 'num', cell: (queue) => compact(queue.running) },
                  { label: 'Oldest', class: 'num sm', cell: (queue) => since(queue.oldest) },
                  {
                    label: 'Rate',
                    class: 'spark-cell lg',
                    cell: (queue) =>
                      history?.queues?.[queue.name]?.completed
                        ? sparkline(
                            history.queues[queue.name].completed,
                            `Completed jobs of ${queue.name}`,
                            'is-complete',
                          )
                        : h('span.num', null, `${decimal(rateOf(queue, history))}/min`),
                  },
                ],
              }),
        ),
        h(
          'div.stack-cards',
          { key: 'side' },
          card(
            'Failures',
            { actions: h('a.more', { href: '#/failures' }, 'All groups') },
            groups.length === 0
              ? empty('check', 'Nothing failed', 'Failed jobs are shown here by group.')
              : h(
                  'ul.ranks',
                  null,
                  groups
                    .slice(0, 5)
                    .map((group) =>
                      h(
                        'li',
                        { key: group.group },
                        h('a.name', { href: route('failures', group.group) }, group.group),
                        bar(group.count, groups[0].count, `${group.count} jobs`, 'is-failed'),
                        h('span.num', null, count(group.count)),
                      ),
                    ),
                ),
          ),
          card(
            'Workers',
            {
              note: lost.length > 0 ? `${count(lost.length)} with stalled jobs` : null,
              actions: h('a.more', { href: '#/workers' }, 'All workers'),
            },
            workers.length === 0
              ? empty('workers', 'No workers', 'Start one: geartrain work mail -- ./handler')
              : h(
                  'ul.list',
                  null,
                  workers
                    .slice(0, 6)
                    .map((worker) =>
                      h(
                        'li',
                        { key: worker.name },
                        h('i.dot', { class: workerState(worker) }),
                        workerLink(worker.name),
                        h('span.grow'),
                        worker.stalled > 0 && badge('stalled', `${worker.stalled} stalled`),
                        h('span.muted.num', null, plural(worker.running, 'job')),
                        h('span.muted.sm', null, time(worker.seen)),
                      ),
                    ),
                ),
          ),
        ),
      ),
      history?.wait &&
        h(
          'div.columns.even',
          { key: 'timings' },
          timing('Wait, today', history.wait, 'is-waiting'),
          timing('Run, today', history.run, 'is-running'),
        ),
      h(
        'div.columns',
        { key: 'columns2' },
        card(
          'Next runs',
          { class: 'two', actions: h('a.more', { href: '#/schedules' }, 'All schedules') },
          next.length === 0
            ? empty('schedules', 'Nothing is scheduled', 'Recurring jobs run by an interval or a cron expression.')
            : h(
                'ul.list',
                null,
                next.map((each) =>
                  h(
                    'li',
                    { key: each.jid },
                    icon('schedules'),
                    h('a.name', { href: '#/schedules' }, each.klass),
                    h('span.muted.sm', null, 'in ', queueLink(each.queue)),
                    h('span.grow'),
                    h(
                      'span.muted.md',
                      null,
                      each.text ?? each.cron ?? (each.every ? `every ${duration(each.every)}` : ''),
                    ),
                    h('span.num', null, time(each.next)),
                  ),
                ),
              ),
        ),
        server &&
          card(
            'Server',
            { actions: h('a.more', { href: '#/settings' }, 'Settings') },
            facts(health(server).filter(([name]) => BRIEF.has(name))),
          ),
      ),
    ];
  },
};

export const workerState = (worker) =>
  worker.stalled > 0
    ? 'is-stalled'
    : worker.seen !== null && now() - worker.seen > 300
      ? 'is-paused'
      : worker.running > 0
        ? 'is-running'
        : 'is-complete';

/** What of it the overview shows. */
const BRIEF = new Set(['Store', 'Started', 'Commit', 'Disk sync', 'Redis round trip', 'Memory']);

/** What the server says about itself, as far as its backend knows. */
export function health(server) {
  const seconds = (value) =>
    value === null || value === undefined ? null : value < 0.01 ? `${decimal(value * 1000)}ms` : duration(value);
  const pair = (of) => (of && of.p50 !== null ? `p50 ${seconds(of.p50)}, p99 ${seconds(of.p99)}` : null);
  const known = [
    ['Version', server.version],
    ['Store', server.url],
    ['Started', time(server.started)],
    ['Sync to disk', server.sync_mode],
    ['Commit', pair(server.commit)],
    ['Disk sync', pair(server.sync)],
    ['Redis round trip', pair(server.round_trip)],
    ['Memory', server.memory && bytes(server.memory)],
    ['Store size', server.store_bytes && bytes(server.store_bytes)],
    [
      'Connections',
      ['HTTP', 'RESP', 'Gearman']
        .map((name) => `${count(server.connections[name.toLowerCase()])} ${name}`)
        .join(', '),
    ],
    ['Connections at most', count(server.connections.max)],
  ];
  return known.filter(([, value]) => value);
}
