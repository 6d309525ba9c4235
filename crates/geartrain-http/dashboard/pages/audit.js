// Who did what, from where, to how many jobs.

import { optional, query } from '../api.js';
import { h } from '../dom.js';
import { count, time } from '../format.js';
import { HeldOrder, badge, button, card, empty, table } from '../ui.js';

const PAGE = 50;

export default {
  title: () => 'Audit',
  begin(ctx) {
    Object.assign(ctx.state, { pages: [], before: null, order: new HeldOrder() });
  },
  load: (ctx) => optional(`v1/audit${query({ limit: PAGE, before: ctx.state.before })}`).then((audit) => ({ audit })),

  view({ audit }, ctx) {
    if (!audit)
      return card(null, {}, empty('audit', 'No audit log', 'Only an admin sees it, on a server that writes one.'));
    const { state } = ctx;
    const { rows } = state.order.of('audit', audit.items, rowKey);
    const turn = (before) => {
      state.before = before;
      document.activeElement?.blur();
      ctx.done();
    };
    return card(
      null,
      { class: 'flush' },
      rows.length === 0
        ? empty('audit', 'Nothing was changed yet', 'Actions by any interface are recorded here.')
        : table({
            id: 'audit',
            label: 'Audit log',
            rows,
            rowKey,
            columns: [
              { label: 'When', class: 'num', cell: (row) => time(row.at) },
              {
                label: 'Who',
                class: 'grow',
                cell: (row) =>
                  h(
                    'span.row.tight',
                    null,
                    h('span.name', null, row.who ?? 'no key'),
                    row.role && h('span.badge.role', null, row.role),
                  ),
              },
              { label: 'Action', cell: (row) => h('code', null, row.action) },
              {
                label: 'Target',
                class: 'md',
                cell: (row) => h('span.clip', { title: row.target }, row.target ?? ''),
              },
              { label: 'Jobs', class: 'num lg', cell: (row) => count(row.count) },
              { label: 'From', class: 'mono lg', cell: (row) => row.from ?? '–' },
              {
                label: 'Outcome',
                class: 'sm',
                cell: (row) => badge(/^(ok|done)$/.test(row.outcome) ? 'complete' : 'failed', row.outcome),
              },
            ],
          }),
      h(
        'footer.card-foot',
        null,
        h('span.grow'),
        button('Newer', () => turn(state.pages.pop() ?? null), { class: 'quiet', disabled: state.before === null }),
        button(
          'Older',
          () => {
            state.pages.push(state.before);
            turn(audit.next);
          },
          { disabled: audit.next === null || audit.next === undefined },
        ),
      ),
    );
  },
};

const rowKey = (row) => `${row.at} ${row.who} ${row.action} ${row.target}`;
