// One failure group: its jobs, newest first, and what to do with all of them.

import { askAll, or } from '../api.js';
import { bulk, groupFilter, retryGroup } from '../actions.js';
import { h } from '../dom.js';
import { count, plural, time } from '../format.js';
import { can } from '../session.js';
import { HeldOrder, button, card, empty, jobColumns, table, workerLink } from '../ui.js';

const PAGE = 25;

export default {
  title: (ctx) => ctx.arg,
  filter: () => ({ event: ['failed', 'put', 'canceled'] }),
  begin(ctx) {
    Object.assign(ctx.state, { offset: 0, order: new HeldOrder() });
  },

  async load(ctx) {
    const [groups, jobs] = await askAll([
      ['failed'],
      ['failed', { group: ctx.arg, limit: PAGE, offset: ctx.state.offset }],
    ]);
    return { total: or(groups, []).find((each) => each.group === ctx.arg)?.count ?? 0, jobs: or(jobs, []) };
  },

  view({ total, jobs }, ctx) {
    const { state } = ctx;
    if (total === 0)
      return card(
        null,
        {},
        empty(
          'check',
          'No job failed in this group',
          'They were retried or cancelled.',
          h('a.button', { href: '#/failures' }, 'All groups'),
        ),
      );
    const { rows } = state.order.of('group', jobs, (job) => job.jid);
    const turn = (by) => {
      state.offset = Math.max(0, state.offset + by);
      document.activeElement?.blur();
      ctx.done();
    };
    return card(
      plural(total, 'failed job'),
      {
        class: 'flush',
        actions: can('operator') && [
          button('Cancel all', () => bulk('cancel', groupFilter(ctx.arg), ctx.done), {
            icon: 'cancel',
            class: 'danger quiet',
          }),
          button('Retry all', () => retryGroup({ group: ctx.arg, count: total }, ctx.done), {
            icon: 'retry',
            class: 'primary',
          }),
        ],
      },
      table({
        id: 'group',
        label: 'Failed jobs',
        rows,
        rowKey: (job) => job.jid,
        columns: [
          jobColumns.jid,
          {
            label: 'Message',
            class: 'grow md',
            cell: (job) => h('span.clip.two-lines', { title: job.failure?.message }, job.failure?.message ?? ''),
          },
          jobColumns.queue,
          { label: 'Worker', class: 'lg', cell: (job) => workerLink(job.failure?.worker) },
          { label: 'Failed', class: 'num', cell: (job) => time(job.failure?.when ?? null) },
        ],
      }),
      h(
        'footer.card-foot',
        null,
        `${count(state.offset + 1)} to ${count(state.offset + jobs.length)} of ${count(total)}`,
        h('span.grow'),
        button('Newer', () => turn(-PAGE), { class: 'quiet', disabled: state.offset === 0 }),
        button('Older', () => turn(PAGE), { disabled: state.offset + jobs.length >= total }),
      ),
    );
  },
};
