// All queues: how many jobs in each state, how old, how fast.

import { optional, query, request } from '../api.js';
import { pauseQueue, putJob } from '../actions.js';
import { sparkline } from '../charts.js';
import { h } from '../dom.js';
import { compact, decimal, plural, since } from '../format.js';
import { prefs } from '../prefs.js';
import { can } from '../session.js';
import { HeldOrder, badge, button, card, empty, queueLink, route, sorted, table } from '../ui.js';
import { rateOf } from './overview.js';

const order = new HeldOrder();
const number = (key, state) => ({
  cell: (queue) =>
    queue[key] > 0
      ? h('a.num', { href: `${route('queues', queue.name)}?tab=${state}` }, compact(queue[key]))
      : h('span.zero', null, '0'),
  sort: (queue) => queue[key],
});

export default {
  title: () => 'Queues',
  filter: () => ({
    event: ['put', 'popped', 'completed', 'failed', 'retried', 'canceled', 'advanced', 'limits-set'],
  }),

  async load() {
    const [queues, history] = await Promise.all([
      request('GET', 'v1/queues'),
      optional(`v1/history${query({ span: prefs.span, all: true })}`),
    ]);
    return { queues, history };
  },

  view({ queues, history }, ctx) {
    const { state } = ctx;
    if (queues.length === 0) {
      return card(
        null,
        {},
        empty(
          'queues',
          'No queues yet',
          'A queue is there as soon as a job was put into it.',
          can('operator') && button('Put a job', () => putJob(), { icon: 'plus', class: 'primary' }),
        ),
      );
    }
    const columns = [
      {
        label: 'Queue',
        class: 'grow',
        sort: (queue) => queue.name,
        cell: (queue) => h('span.row.tight', null, queueLink(queue.name), queue.paused && badge('paused')),
      },
      { label: 'Waiting', class: 'num', ...number('waiting', 'waiting') },
      { label: 'Running', class: 'num', ...number('running', 'running') },
      { label: 'Stalled', class: 'num md', ...number('stalled', 'stalled') },
      { label: 'Scheduled', class: 'num md', ...number('scheduled', 'scheduled') },
      { label: 'Dependent', class: 'num lg', ...number('depends', 'depends') },
      {
        label: 'Recurring',
        class: 'num xl',
        sort: (queue) => queue.recurring,
        cell: (queue) =>
          queue.recurring ? h('a.num', { href: '#/schedules' }, compact(queue.recurring)) : h('span.zero', null, '0'),
      },
      {
        label: 'Failed',
        class: 'num sm',
        sort: (queue) => queue.failed,
        cell: (queue) =>
          queue.failed > 0
            ? h(
                'a.num.is-failed',
                { href: `${route('queues', queue.name)}?tab=failed` },
                compact(queue.failed) + (queue.failed_or_more ? '+' : ''),
              )
            : h('span.zero', null, queue.failed === null ? '–' : '0'),
      },
      {
        label: 'Oldest',
        class: 'num md',
        sort: (queue) => queue.oldest ?? Infinity,
        cell: (queue) => since(queue.oldest),
      },
      {
        label: 'Per minute',
        class: 'num lg',
        sort: (queue) => rateOf(queue, history),
        cell: (queue) => decimal(rateOf(queue, history)),
      },
      ...(history?.queues
        ? [
            {
              label: 'Completed',
              class: 'spark-cell xl',
              cell: (queue) =>
                history.queues[queue.name]?.completed &&
                sparkline(history.queues[queue.name].completed, `Completed jobs of ${queue.name}`, 'is-complete'),
            },
          ]
        : []),
      ...(can('operator')
        ? [
            {
              label: '',
              class: 'act sm',
              cell: (queue) =>
                button('', () => pauseQueue(queue, ctx.done), {
                  icon: queue.paused ? 'play' : 'pause',
                  class: 'quiet',
                  label: `${queue.paused ? 'Resume' : 'Pause'} ${queue.name}`,
                  title: queue.paused ? 'Resume' : 'Pause',
                }),
            },
          ]
        : []),
    ];
    const { rows, held } = order.of('queues', sorted(queues, columns, state.sort), (queue) => queue.name);
    return card(
      null,
      { class: 'flush' },
      table({
        id: 'queues',
        label: 'Queues',
        columns,
        rows,
        rowKey: (queue) => queue.name,
        rowClass: (queue) => (queue.paused ? 'dim' : ''),
        sort: state.sort,
        onSort: (sort) => {
          state.sort = sort;
          document.activeElement?.blur();
          ctx.rerender();
        },
      }),
      h(
        'footer.card-foot',
        null,
        plural(queues.length, 'queue'),
        held > 0 && ` · ${plural(held, 'new queue')} when the pointer leaves the table`,
      ),
    );
  },
};
