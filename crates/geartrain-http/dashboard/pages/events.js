// The events of the queue as they come.

import { h } from '../dom.js';
import { absolute, clock, count } from '../format.js';
import { icon } from '../icons.js';
import { prefs, setPref } from '../prefs.js';
import { button, card, empty, jobLink, queueLink, route, workerLink } from '../ui.js';

const SHOWN_MAX = 300;
const KINDS = [
  'put',
  'popped',
  'completed',
  'advanced',
  'retried',
  'failed',
  'canceled',
  'lock-lost',
  'handed-back',
  'progress',
  'coalesced',
  'worker-gone',
  'announced',
  'limits-set',
  'config-set',
  'milestone',
];
const STATES = {
  put: 'waiting',
  popped: 'running',
  completed: 'complete',
  advanced: 'complete',
  retried: 'stalled',
  failed: 'failed',
  canceled: 'paused',
  'lock-lost': 'stalled',
  'handed-back': 'waiting',
  progress: 'running',
  'worker-gone': 'stalled',
  milestone: 'scheduled',
};

export default {
  title: () => 'Events',
  filter: (ctx) => ({
    event: ctx.search.getAll('event'),
    queue: ctx.search.getAll('queue'),
    jid: ctx.search.getAll('jid'),
    worker: ctx.search.getAll('worker'),
  }),
  begin(ctx) {
    Object.assign(ctx.state, { events: [], pending: 0, seen: 0 });
  },
  load: async () => ({}),
  concerns: () => true,
  onEvent(event, ctx) {
    const { state } = ctx;
    state.seen += 1;
    if (state.events[0]?.position === event.position) return;
    state.events.unshift(event);
    state.events.length = Math.min(state.events.length, SHOWN_MAX);
  },

  view(_, ctx) {
    const { state, search } = ctx;
    const isOn = (kind) => search.getAll('event').includes(kind);
    const toggle = (kind) => {
      const next = new URLSearchParams(search);
      next.delete('event');
      const kinds = isOn(kind)
        ? search.getAll('event').filter((each) => each !== kind)
        : [...search.getAll('event'), kind];
      kinds.forEach((each) => next.append('event', each));
      location.hash = `#/events${next.size ? `?${next}` : ''}`;
    };
    return [
      h(
        'form.filter.inline',
        {
          key: 'filter',
          onsubmit: (event) => {
            event.preventDefault();
            const next = new URLSearchParams();
            search.getAll('event').forEach((kind) => next.append('event', kind));
            for (const name of ['queue', 'worker', 'jid'])
              if (event.target.elements[name].value.trim()) next.set(name, event.target.elements[name].value.trim());
            location.hash = `#/events${next.size ? `?${next}` : ''}`;
          },
        },
        ['queue', 'worker', 'jid'].map((name) =>
          h(
            'label',
            { key: name },
            h('span', null, { queue: 'Queue', worker: 'Worker', jid: 'Job' }[name]),
            h('input', { name, value: search.get(name) ?? '', autocomplete: 'off', spellcheck: 'false' }),
          ),
        ),
        h('button.button', { type: 'submit' }, 'Filter'),
        h('span.grow'),
        button(prefs.paused ? 'Go on' : 'Pause', () => setPref('paused', !prefs.paused), {
          icon: prefs.paused ? 'play' : 'pause',
        }),
        button(
          'Clear',
          () => {
            state.events = [];
            ctx.rerender();
          },
          { class: 'quiet' },
        ),
      ),
      h(
        'div.hints',
        { key: 'kinds', role: 'group', 'aria-label': 'Kinds of events' },
        KINDS.map((kind) =>
          h(
            'button.hint',
            { type: 'button', key: kind, 'aria-pressed': String(isOn(kind)), onclick: () => toggle(kind) },
            kind,
          ),
        ),
      ),
      card(
        null,
        { class: 'flush' },
        state.events.length === 0
          ? empty(
              'events',
              prefs.paused ? 'Paused' : 'Nothing has happened yet',
              'Events are shown as they come, the newest first.',
            )
          : h(
              'ol.events',
              { id: 'events', tabindex: 0, 'aria-label': 'Events' },
              state.events.map((event) =>
                h(
                  'li',
                  { key: event.position },
                  h(
                    'span.num.muted',
                    { title: event.at ? absolute(event.at) : null },
                    event.at ? clock(event.at) : '–',
                  ),
                  h(
                    'span.badge',
                    { class: `is-${STATES[event.event] ?? 'log'}` },
                    icon(STATES[event.event] ?? 'dot'),
                    event.event,
                  ),
                  h('span.event-text', null, said(event)),
                ),
              ),
            ),
        h(
          'footer.card-foot',
          null,
          `${count(state.seen)} since this page was opened, the newest ${SHOWN_MAX} are shown`,
        ),
      ),
    ];
  },
};

function said(event) {
  return [
    event.jid && jobLink(event.jid),
    event.queue && [' in ', queueLink(event.queue)],
    event.to && [' to ', queueLink(event.to)],
    event.worker && [' by ', workerLink(event.worker)],
    event.group && [', group ', h('a', { href: route('failures', event.group) }, event.group)],
    event.message && h('span.muted', null, `: ${event.message}`),
    event.progress && ` ${event.progress.percent} %`,
    event.option && ` ${event.option}${event.value === undefined ? '' : ` = ${event.value}`}`,
    event.what && ` ${event.what}`,
    event.crashed && h('span.is-failed', null, ' crashed'),
  ];
}
