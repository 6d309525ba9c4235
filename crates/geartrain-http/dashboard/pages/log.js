// The result log: each attempt that the server recorded.

import { optional, query } from '../api.js';
import { h } from '../dom.js';
import { duration, plural, time } from '../format.js';
import { HeldOrder, badge, card, command, empty, jobLink, queueLink, table, workerLink } from '../ui.js';

const FIELDS = [
  ['queue', 'Queue'],
  ['klass', 'Klass'],
  ['jid', 'Job'],
  ['since', 'Since', '2h'],
];
const OUTCOMES = {
  completed: 'complete',
  advanced: 'complete',
  failed: 'failed',
  retried: 'stalled',
  lost: 'stalled',
  'timed-out': 'stalled',
  crashed: 'failed',
  expired: 'failed',
  running: 'running',
  canceled: 'paused',
  'handed-back': 'waiting',
  abandoned: 'paused',
};

export default {
  title: () => 'Log',
  filter: () => ({ event: ['completed', 'failed', 'retried', 'advanced'] }),
  begin(ctx) {
    Object.assign(ctx.state, { order: new HeldOrder(), limit: 50 });
  },
  load: (ctx) => {
    const fields = Object.fromEntries(FIELDS.map(([name]) => [name, ctx.search.get(name)]));
    return optional(`v1/log${query({ ...fields, failed: ctx.search.get('failed'), limit: ctx.state.limit })}`).then(
      (log) => ({ log }),
    );
  },

  view({ log }, ctx) {
    if (!log)
      return card(
        null,
        {},
        empty(
          'log',
          'This server keeps no result log',
          'Started with a result log, it records every attempt in a database.',
          command('geartrain server --result-log sqlite:results.db'),
        ),
      );
    const attempts = [...log.attempts].reverse();
    const { rows } = ctx.state.order.of('log', attempts, rowKey);
    const go = (form) => {
      const next = new URLSearchParams();
      for (const [name] of FIELDS)
        if (form.elements[name].value.trim()) next.set(name, form.elements[name].value.trim());
      if (form.elements.failed.checked) next.set('failed', 'true');
      location.hash = `#/log${next.size ? `?${next}` : ''}`;
    };
    return [
      h(
        'form.filter.inline',
        {
          key: 'filter',
          onsubmit: (event) => {
            event.preventDefault();
            go(event.target);
          },
        },
        FIELDS.map(([name, label, placeholder]) =>
          h(
            'label',
            { key: name },
            h('span', null, label),
            h('input', {
              name,
              value: ctx.search.get(name) ?? '',
              placeholder,
              autocomplete: 'off',
              spellcheck: 'false',
            }),
          ),
        ),
        h(
          'label.check',
          null,
          h('input', {
            type: 'checkbox',
            name: 'failed',
            checked: ctx.search.has('failed'),
            onchange: (event) => go(event.target.form),
          }),
          h('span', null, 'Only unsuccessful'),
        ),
        h('button.button', { type: 'submit' }, 'Filter'),
      ),
      log.gaps?.length > 0 &&
        h(
          'div.notice.warn',
          { key: 'gaps' },
          `The log misses events in ${plural(log.gaps.length, 'place')}: the server was away for too long.`,
        ),
      card(
        null,
        { class: 'flush' },
        rows.length === 0
          ? empty('log', 'No attempt is recorded', 'By this filter, at least.')
          : table({
              id: 'log',
              label: 'Attempts',
              rows,
              rowKey,
              columns: [
                { label: 'Ended', class: 'num', cell: (row) => time(row.ended ?? row.started) },
                { label: 'Outcome', cell: (row) => badge(OUTCOMES[row.outcome] ?? 'waiting', row.outcome) },
                {
                  label: 'Job',
                  class: 'grow',
                  cell: (row) => h('span.stack', null, h('span', null, row.klass ?? ''), jobLink(row.jid)),
                },
                { label: 'Attempt', class: 'num lg', cell: (row) => row.attempt ?? '–' },
                { label: 'Queue', class: 'md', cell: (row) => queueLink(row.queue) },
                { label: 'Worker', class: 'lg', cell: (row) => workerLink(row.worker) },
                { label: 'Took', class: 'num sm', cell: (row) => duration(row.took) },
                {
                  label: 'Message',
                  class: 'xl',
                  cell: (row) =>
                    h(
                      'span.clip',
                      { title: row.message },
                      row.group && h('b', null, `${row.group}: `),
                      row.message ?? '',
                    ),
                },
              ],
            }),
        h(
          'footer.card-foot',
          null,
          `${plural(rows.length, 'attempt')}, the newest first`,
          h('span.grow'),
          log.more &&
            h(
              'button.button',
              {
                type: 'button',
                onclick: () => {
                  ctx.state.limit = Math.min(1000, ctx.state.limit + 100);
                  ctx.done();
                },
              },
              'Older',
            ),
        ),
      ),
    ];
  },
};

const rowKey = (row) => `${row.jid} ${row.attempt ?? row.ended}`;
