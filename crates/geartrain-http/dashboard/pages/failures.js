// Failed jobs by group: how many, since when, what they say.

import { Refused, askAll, or, request } from '../api.js';
import { retryGroup } from '../actions.js';
import { h } from '../dom.js';
import { count, plural, time } from '../format.js';
import { can } from '../session.js';
import { HeldOrder, bar, button, card, empty, route, table } from '../ui.js';

const order = new HeldOrder();
/** Groups whose newest and oldest jobs are looked up. */
const SAMPLED_MAX = 40;

export default {
  title: () => 'Failures',
  filter: () => ({ event: ['failed', 'put', 'canceled'] }),

  async load() {
    const groups = await request('GET', 'v1/failures');
    const some = groups.slice(0, SAMPLED_MAX);
    const documents = some.length
      ? await askAll(
          some.flatMap(({ group, count: number }) => [
            ['failed', { group, limit: 20 }],
            ['failed', { group, limit: 1, offset: number - 1 }],
          ]),
        )
      : [];
    return groups.map((group, index) => ({
      ...group,
      newest: index < some.length ? or(documents[index * 2], []) : [],
      oldest: index < some.length ? (or(documents[index * 2 + 1], [])[0] ?? null) : null,
    }));
  },

  view(groups, ctx) {
    if (groups instanceof Refused || groups.length === 0)
      return card(
        null,
        {},
        empty(
          'check',
          'Nothing failed',
          'A job that fails, or has no retries left, is shown here by the group that its worker named.',
        ),
      );
    const { rows } = order.of('failures', groups, (each) => each.group);
    const max = Math.max(...groups.map((each) => each.count));
    return card(
      null,
      { class: 'flush' },
      table({
        id: 'failures',
        label: 'Failure groups',
        rows,
        rowKey: (each) => each.group,
        columns: [
          {
            label: 'Group',
            class: 'grow',
            cell: (each) =>
              h(
                'span.stack',
                null,
                h('a.name', { href: route('failures', each.group) }, each.group),
                h(
                  'span.muted.clip',
                  { title: each.newest[0]?.failure?.message },
                  each.newest[0]?.failure?.message ?? '',
                ),
              ),
          },
          { label: 'Jobs', class: 'num', cell: (each) => count(each.count) },
          {
            label: 'Share',
            class: 'md bar-cell',
            cell: (each) => bar(each.count, max, `${each.count} jobs`, 'is-failed'),
          },
          {
            label: 'Klasses',
            class: 'lg',
            cell: (each) =>
              h(
                'span.tags',
                null,
                [...new Set(each.newest.map((job) => job.klass))]
                  .slice(0, 3)
                  .map((klass) => h('span.tag', { key: klass }, klass)),
              ),
          },
          { label: 'First', class: 'num xl', cell: (each) => time(each.oldest?.failure?.when ?? null) },
          { label: 'Last', class: 'num sm', cell: (each) => time(each.newest[0]?.failure?.when ?? null) },
          ...(can('operator')
            ? [
                {
                  label: '',
                  class: 'act',
                  cell: (each) =>
                    button('Retry all', () => retryGroup(each, ctx.done), {
                      icon: 'retry',
                      class: 'folds',
                      title: 'Retry all',
                      label: `Retry all of ${each.group}`,
                    }),
                },
              ]
            : []),
        ],
      }),
      h(
        'footer.card-foot',
        null,
        `${plural(
          groups.reduce((sum, each) => sum + each.count, 0),
          'failed job',
        )} in ${plural(groups.length, 'group')}`,
      ),
    );
  },
};
