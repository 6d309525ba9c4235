// Workers: what they hold, when they were last seen, what they can do.

import { request } from '../api.js';
import { h } from '../dom.js';
import { count, plural, time } from '../format.js';
import { HeldOrder, badge, card, command, empty, table, workerLink } from '../ui.js';
import { workerState } from './overview.js';

const order = new HeldOrder();
const WORDS = { 'is-stalled': 'stalled', 'is-paused': 'silent', 'is-running': 'busy', 'is-complete': 'idle' };

export const workerBadge = (worker) => badge(workerState(worker).slice(3), WORDS[workerState(worker)]);

export default {
  title: () => 'Workers',
  filter: () => ({
    event: ['popped', 'completed', 'failed', 'retried', 'handed-back', 'announced', 'worker-gone', 'lock-lost'],
  }),
  load: () => request('GET', 'v1/workers'),

  view(workers) {
    if (workers.length === 0)
      return card(
        null,
        {},
        empty(
          'workers',
          'No workers yet',
          'A worker is listed when it has asked for a job.',
          command('geartrain work mail -- ./handler'),
        ),
      );
    const { rows } = order.of('workers', workers, (worker) => worker.name);
    return card(
      null,
      { class: 'flush' },
      table({
        id: 'workers',
        label: 'Workers',
        rows,
        rowKey: (worker) => worker.name,
        columns: [
          { label: 'Worker', class: 'grow', cell: (worker) => workerLink(worker.name) },
          { label: 'State', cell: workerBadge },
          { label: 'Running', class: 'num', cell: (worker) => count(worker.running) },
          {
            label: 'Stalled',
            class: 'num sm',
            cell: (worker) =>
              worker.stalled > 0
                ? h('span.is-stalled.strong', null, count(worker.stalled))
                : h('span.zero', null, '0'),
          },
          { label: 'Can do', class: 'lg', cell: (worker) => abilities(worker) },
          { label: 'Seen', class: 'num', cell: (worker) => time(worker.seen) },
        ],
      }),
      h(
        'footer.card-foot',
        null,
        `${plural(workers.length, 'worker')}. One that holds nothing leaves the list a day after it was last seen.`,
      ),
    );
  },
};

export const abilities = (worker) => {
  const names = worker.can.map((each) => (each.klass ? `${each.queue}: ${each.klass}` : each.queue));
  return h(
    'span.tags',
    null,
    names.length === 0
      ? h('span.muted', null, 'anything it asks for')
      : names.slice(0, 4).map((name) => h('span.tag', { key: name }, name)),
    names.length > 4 && h('span.muted', null, `and ${names.length - 4} more`),
  );
};
