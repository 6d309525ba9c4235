// The jobs that are watched, with their progress.

import { request } from '../api.js';
import { track } from '../actions.js';
import { h } from '../dom.js';
import { plural } from '../format.js';
import { can } from '../session.js';
import { HeldOrder, button, card, empty, jobColumns, table } from '../ui.js';
import { timelineBar } from '../timeline.js';

const order = new HeldOrder();

export default {
  title: () => 'Tracked',
  filter: () => ({}),
  concerns: (event, ctx) =>
    event.event === 'track' ||
    event.event === 'untrack' ||
    (ctx.data?.jobs ?? []).some((job) => job.jid === event.jid),
  load: () => request('GET', 'v1/tracked'),

  view({ jobs, gone }, ctx) {
    if (jobs.length === 0)
      return card(
        null,
        {},
        empty('tracked', 'No job is tracked', 'Track a job on its page, and follow it here until it ends.'),
      );
    const { rows } = order.of('tracked', jobs, (job) => job.jid);
    const { jid, state, queue, attempts, when } = jobColumns;
    return card(
      null,
      { class: 'flush' },
      table({
        id: 'tracked',
        label: 'Tracked jobs',
        rows,
        rowKey: (job) => job.jid,
        columns: [
          jid,
          state,
          queue,
          { label: 'Life', class: 'lg life-cell', cell: timelineBar },
          attempts,
          when,
          ...(can('operator')
            ? [
                {
                  label: '',
                  class: 'act',
                  cell: (job) =>
                    button('', () => track(job, ctx.done), {
                      icon: 'close',
                      class: 'quiet',
                      label: `Stop tracking ${job.jid}`,
                      title: 'Stop tracking',
                    }),
                },
              ]
            : []),
        ],
      }),
      h(
        'footer.card-foot',
        null,
        plural(jobs.length, 'tracked job'),
        gone.length > 0 && `, ${plural(gone.length, 'more is', 'more are')} gone`,
      ),
    );
  },
};
