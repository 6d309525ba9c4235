// Search: jobs that a filter selects, page by page, and acts on all of them.

import { Refused, ask } from '../api.js';
import { bulk, forJobs } from '../actions.js';
import { h } from '../dom.js';
import { count, plural } from '../format.js';
import { icon } from '../icons.js';
import { can } from '../session.js';
import { HeldOrder, button, card, empty, jobColumns, problem, quoteTerm, route, table } from '../ui.js';

const STATES = [
  ['', 'All'],
  ['waiting', 'Waiting'],
  ['running', 'Running'],
  ['stalled', 'Stalled'],
  ['scheduled', 'Scheduled'],
  ['depends', 'Dependent'],
  ['failed', 'Failed'],
  ['complete', 'Complete'],
];
const PAGE = 50;

const TERMS = [
  ['queue=', 'jobs of this queue'],
  ['klass=', 'jobs of this klass'],
  ['state=', 'waiting, running, stalled, scheduled, depends, failed, complete'],
  ['tag=', 'jobs with this tag'],
  ['group=', 'failed in this group'],
  ['worker=', 'held by this worker'],
  ['age>', 'first put longer ago: 2h'],
  ['attempts>', 'with more attempts'],
  ['args.', 'a value in the payload: args.user.id=42'],
];

const whereOf = (ctx) => (ctx.search.get('where') ?? '').trim();
const goTo = (where) => {
  location.hash = `#/jobs${where ? `?where=${encodeURIComponent(where)}` : ''}`;
};

/** The filter with another state, or none. */
const withState = (where, state) =>
  `${where.replace(/(^|\s)state=\S+/g, ' ').trim()} ${state ? `state=${state}` : ''}`.trim();

export default {
  title: () => 'Jobs',
  filter: (ctx) => (ctx.state.after ? null : {}),
  begin(ctx) {
    Object.assign(ctx.state, {
      chosen: new Set(),
      pages: [],
      after: null,
      order: new HeldOrder(),
      draft: whereOf(ctx),
      names: null,
    });
  },

  async load(ctx) {
    const where = whereOf(ctx);
    ctx.state.names ??= await ask('queues')
      .then((queues) => queues.map((queue) => queue.name))
      .catch(() => []);
    try {
      const page = await ask('jobs', {
        ...(where && { where }),
        limit: PAGE,
        ...(ctx.state.after && { after: ctx.state.after }),
      });
      return { ...page, error: null };
    } catch (error) {
      if ((error instanceof Refused && error.status === 400) || error.code === 'not-json')
        return { items: [], next: null, error };
      throw error;
    }
  },

  view({ items, next, error }, ctx) {
    const { state } = ctx;
    const where = whereOf(ctx);
    const chosenState = /(?:^|\s)state=(\S+)/.exec(where)?.[1] ?? '';
    const { rows, held } = state.order.of('jobs', items, (job) => job.jid);
    const shown = rows.map((job) => job.jid);
    state.chosen = new Set([...state.chosen].filter((jid) => shown.includes(jid)));
    const isAll = shown.length > 0 && state.chosen.size === shown.length;
    const choose = (jids, isOn) => {
      for (const jid of jids) isOn ? state.chosen.add(jid) : state.chosen.delete(jid);
      ctx.rerender();
    };
    const box = {
      label: h('input', {
        type: 'checkbox',
        'aria-label': 'Choose all on this page',
        checked: isAll,
        indeterminate: state.chosen.size > 0 && !isAll,
        onchange: (event) => choose(shown, event.target.checked),
      }),
      class: 'check',
      cell: (job) =>
        h('input', {
          type: 'checkbox',
          'aria-label': `Choose ${job.jid}`,
          checked: state.chosen.has(job.jid),
          onchange: (event) => choose([job.jid], event.target.checked),
        }),
    };
    const { jid, state: stateColumn, queue, priority, tags, attempts, when } = jobColumns;
    const columns = [...(can('operator') ? [box] : []), jid, stateColumn, queue, priority, tags, attempts, when];
    return [
      h(
        'form.filter',
        {
          key: 'filter',
          role: 'search',
          'aria-label': 'Filter',
          onsubmit: (event) => {
            event.preventDefault();
            const text = event.target.elements.where.value.trim();
            if (text !== '' && !/[=<>\s]/.test(text)) location.hash = route('jobs', text);
            else goTo(text);
          },
        },
        h(
          'div.filter-box',
          null,
          icon('jobs'),
          h('input', {
            id: 'filter',
            name: 'where',
            type: 'search',
            'aria-label': 'Filter',
            'aria-describedby': 'filter-help',
            value: state.draft,
            placeholder: 'queue=mail state=failed tag=vip age>2h args.user.id=42',
            autocomplete: 'off',
            spellcheck: 'false',
            oninput: (event) => {
              state.draft = event.target.value;
              ctx.rerender();
            },
          }),
          h('button.button.primary', { type: 'submit' }, 'Search'),
        ),
        h(
          'div.hints',
          { id: 'filter-help' },
          hints(state).map(([text, meaning]) =>
            h(
              'button.hint',
              {
                type: 'button',
                key: text,
                title: meaning,
                onclick: () => {
                  const input = document.getElementById('filter');
                  state.draft = complete(state.draft, text);
                  input.value = state.draft;
                  input.focus();
                  ctx.rerender();
                },
              },
              text,
            ),
          ),
        ),
      ),
      h(
        'div.tabs.pills',
        { key: 'states', role: 'group', 'aria-label': 'State' },
        STATES.map(([name, text]) =>
          h(
            'a',
            {
              key: name,
              href: `#/jobs${withState(where, name) ? `?where=${encodeURIComponent(withState(where, name))}` : ''}`,
              'aria-current': chosenState === name ? 'true' : null,
              class: name ? `is-${name}` : '',
            },
            name && h('i.dot'),
            text,
          ),
        ),
      ),
      error
        ? problem(error)
        : card(
            null,
            { class: 'flush' },
            can('operator') &&
              h(
                'div.bulk',
                null,
                state.chosen.size > 0
                  ? [
                      h('strong', null, `${count(state.chosen.size)} chosen`),
                      button('Requeue', () => forJobs('requeue', [...state.chosen], ctx.done), { icon: 'retry' }),
                      button('Cancel', () => forJobs('cancel', [...state.chosen], ctx.done), {
                        icon: 'cancel',
                        class: 'danger',
                      }),
                      button('None', () => choose(shown, false), { class: 'quiet' }),
                    ]
                  : [
                      h('span.muted', null, where ? 'All that this filter selects:' : 'All jobs:'),
                      ['requeue', 'cancel', 'priority', 'tag', 'untag'].map((name) =>
                        button(
                          { requeue: 'Requeue', cancel: 'Cancel', priority: 'Priority', tag: 'Tag', untag: 'Untag' }[
                            name
                          ],
                          () => bulk(name, where, ctx.done),
                          { key: name, class: name === 'cancel' ? 'danger quiet' : 'quiet' },
                        ),
                      ),
                    ],
              ),
            rows.length === 0
              ? empty(
                  'jobs',
                  next ? 'None among those examined so far' : 'No job is selected',
                  next
                    ? 'Later pages may have some.'
                    : where
                      ? 'Remove a term of the filter to see more.'
                      : 'Put a job, and it is here.',
                )
              : table({
                  id: 'jobs',
                  label: 'Jobs',
                  columns,
                  rows,
                  rowKey: (job) => job.jid,
                  rowClass: (job) => (state.chosen.has(job.jid) ? 'chosen' : ''),
                }),
            h(
              'footer.card-foot',
              null,
              h('span', null, `Page ${state.pages.length + 1}, ${plural(rows.length, 'job')}`),
              held > 0 && h('span.muted', null, `${plural(held, 'new job')} when the pointer leaves the table`),
              h('span.grow'),
              button('Newer', () => turn(ctx, state.pages.pop() ?? null), {
                class: 'quiet',
                disabled: state.after === null,
              }),
              button(
                'Next page',
                () => {
                  state.pages.push(state.after);
                  turn(ctx, next);
                },
                { disabled: next === null },
              ),
            ),
          ),
    ];
  },
};

function turn(ctx, after) {
  ctx.state.after = after;
  ctx.state.chosen.clear();
  ctx.state.order = new HeldOrder();
  document.activeElement?.blur();
  ctx.done();
}

/** What could come next in the filter: a field, or a known value of one. */
function hints(state) {
  const last = state.draft.split(/\s+/).at(-1);
  if (last.startsWith('queue=')) {
    const typed = last.slice(6).toLowerCase();
    return state.names
      .filter((name) => name.toLowerCase().includes(typed))
      .slice(0, 8)
      .map((name) => [`queue=${quoteTerm(name)}`, 'a queue']);
  }
  if (last.startsWith('state='))
    return STATES.slice(1)
      .map(([name]) => [`state=${name}`, 'a state'])
      .filter(([text]) => text.startsWith(last) && text !== last);
  return TERMS.filter(([text]) => text.startsWith(last) && text !== last);
}

const complete = (draft, text) => `${draft.slice(0, draft.length - draft.split(/\s+/).at(-1).length)}${text}`;
