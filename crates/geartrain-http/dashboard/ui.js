// Parts that all pages share: badges, cards, tables, dialogs, toasts.

import { Refused, url } from './api.js';
import { append, h } from './dom.js';
import { absolute, compact, count, duration, shellWord, time } from './format.js';
import { icon } from './icons.js';
import { hexLines, pretty } from './json.js';

export const route = (...parts) => `#/${parts.map((part) => encodeURIComponent(part)).join('/')}`;
export const jobLink = (jid) => h('a.mono', { href: route('jobs', jid), title: jid }, shortJid(jid));
export const queueLink = (queue) =>
  queue === null || queue === undefined
    ? h('span.muted', null, '–')
    : h('a.name', { href: route('queues', queue), title: queue }, queue);
export const workerLink = (worker) =>
  worker ? h('a.name', { href: route('workers', worker), title: worker }, worker) : h('span.muted', null, '–');

/** The ids that geartrain makes are long, and differ in their last digits. */
const shortJid = (jid) => (/^[0-9a-f]{32}$/.test(jid) ? `${jid.slice(0, 8)}…${jid.slice(-6)}` : jid);

/** A state, by its colour, icon and word. */
export const badge = (state, text = state) => h('span.badge', { class: `is-${state}` }, icon(state), text);
export const stateOf = (job) => (job.stalled ? 'stalled' : job.state);

export const tags = (list) =>
  list.map((tag) => h('a.tag', { href: `#/jobs?where=${encodeURIComponent(`tag=${quoteTerm(tag)}`)}` }, tag));

/** A value of a filter, quoted if it needs that. */
export const quoteTerm = (text) =>
  /^[^\s"\\=<>]+$/.test(text) ? text : `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`;

export const card = (title, { actions, class: name = '', note } = {}, ...children) =>
  h(
    'section.card',
    { class: name },
    title &&
      h('header.card-head', null, h('h2', null, title), note && h('span.note', null, note), h('span.grow'), actions),
    children,
  );

export const empty = (name, title, text, ...more) =>
  h(
    'div.empty',
    null,
    h('span.empty-icon', null, icon(name)),
    h('p.empty-title', null, title),
    text && h('p', null, text),
    more,
  );

/** What stands where data will be. */
export const skeleton = (rows = 6) =>
  h(
    'div.skeleton',
    { 'aria-hidden': 'true' },
    Array.from({ length: rows }, (_, row) => h('span', { class: `w${row % 4}` })),
  );

/** A number with its label. */
export const figure = (label, value, { class: name = '', note, href, spark, title } = {}) =>
  h(
    href ? 'a.figure' : 'div.figure',
    { class: name, href, title },
    h('span.label', null, label),
    h('span.value', null, value),
    note && h('span.note', null, note),
    spark,
  );

/** A part of a whole, as a bar. */
export const bar = (part, whole, label, name = '') => {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return h(
    'svg.bar',
    { class: name, viewBox: '0 0 100 6', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    h('rect.track', { x: 0, y: 0, width: 100, height: 6 }),
    h('rect.fill', { x: 0, y: 0, width: (share * 100).toFixed(2), height: 6 }),
  );
};

export const progress = (of) =>
  of &&
  h(
    'span.progress',
    null,
    bar(of.part, of.whole, `${of.percent} percent`),
    h('span.num', null, `${of.percent} %`),
    of.left !== null && of.left !== undefined && h('span.muted', null, `${duration(of.left)} left`),
  );

/** The order of a table stays while the pointer or the focus is in it: nothing moves away from under a click. */
export class HeldOrder {
  #known = [];

  /** The rows in the order to show, and how many are held back. */
  of(id, rows, idOf) {
    const host = document.getElementById(id);
    const isHeld =
      host && (host.matches(':hover') || host.contains(document.activeElement)) && this.#known.length > 0;
    if (!isHeld) {
      this.#known = rows.map(idOf);
      return { rows, held: 0 };
    }
    const byId = new Map(rows.map((row) => [idOf(row), row]));
    const shown = this.#known.filter((known) => byId.has(known)).map((known) => byId.get(known));
    return { rows: shown, held: rows.length - shown.length };
  }
}

/** A table. Columns are `{label, cell, class, sort}`; rows have a key, so that they stay themselves in a refresh. */
export function table({ id, label, columns, rows, rowKey, rowClass, sort, onSort, caption }) {
  const head = columns.map((column, index) => {
    const text = column.label;
    const name = column.class ?? '';
    if (!column.sort || !onSort)
      return h(
        'th',
        { key: index, class: name, scope: 'col' },
        typeof text === 'string' && text === '' ? h('span.sr', null, column.name ?? 'Actions') : text,
      );
    const isBy = sort?.by === index;
    const order = isBy ? (sort.down ? 'descending' : 'ascending') : 'none';
    return h(
      'th',
      { key: index, class: name, scope: 'col', 'aria-sort': order },
      h(
        'button.sort',
        {
          type: 'button',
          class: isBy ? (sort.down ? 'down' : 'up') : '',
          onclick: () => onSort({ by: index, down: isBy ? !sort.down : true }),
        },
        text,
      ),
    );
  });
  const body = rows.map((row) =>
    h(
      'tr',
      { key: rowKey(row), class: rowClass?.(row) ?? '' },
      columns.map((column, index) => h('td', { key: index, class: column.class ?? '' }, column.cell(row))),
    ),
  );
  return h(
    'div.scroll',
    { id, tabindex: 0, role: 'region', 'aria-label': label },
    h(
      'table',
      null,
      caption && h('caption', null, caption),
      h('thead', null, h('tr', null, head)),
      h('tbody', null, body),
    ),
  );
}

export function sorted(rows, columns, sort) {
  const by = columns[sort?.by]?.sort;
  if (!by) return rows;
  const compare = (one, other) => {
    const [a, b] = [by(one), by(other)];
    return a === b ? 0 : a === null || a === undefined ? 1 : b === null || b === undefined ? -1 : a < b ? -1 : 1;
  };
  return [...rows].sort((one, other) => (sort.down ? compare(other, one) : compare(one, other)));
}

/** One of several, as a row of buttons. */
export const choice = (label, options, chosen, onChoose) =>
  h(
    'div.choice',
    { role: 'group', 'aria-label': label },
    options.map(([value, text]) =>
      h(
        'button',
        { type: 'button', key: value, 'aria-pressed': String(value === chosen), onclick: () => onChoose(value) },
        text,
      ),
    ),
  );

export const button = (text, onclick, { icon: name, class: kind = '', disabled, title, label } = {}) =>
  h(
    'button.button',
    { type: 'button', class: kind, onclick, disabled, title, 'aria-label': label },
    name && icon(name),
    text && h('span', null, text),
  );

/** A payload or a result: as JSON, text or bytes. `state` remembers which. */
export function payload(raw, { name, state, rerender }) {
  if (!raw) return h('p.muted.pad', null, 'None.');
  const kinds = raw.kind === 'json' ? ['json', 'text', 'hex'] : raw.kind === 'text' ? ['text', 'hex'] : ['hex'];
  const chosen = kinds.includes(state[name]) ? state[name] : kinds[0];
  const asBytes = () => raw.bytes();
  const text = raw.kind === 'text' ? JSON.parse(raw.text) : raw.text;
  const size = asBytes().length;
  if (size === 0) return h('p.muted.pad', null, 'Empty.');
  const content =
    chosen === 'hex'
      ? hexLines(asBytes())
      : chosen === 'text'
        ? clip(text)
        : clip(raw.text).length < raw.text.length
          ? clip(raw.text)
          : pretty(raw.text).map(([kind, token]) => h(`span.j-${kind}`, null, token));
  return h(
    'div.payload',
    null,
    h(
      'div.row',
      null,
      choice(
        'Shown as',
        kinds.map((kind) => [kind, { json: 'JSON', text: 'Text', hex: 'Hex' }[kind]]),
        chosen,
        (kind) => {
          state[name] = kind;
          rerender();
        },
      ),
      h('span.muted.num.sm', null, `${count(size)} ${size === 1 ? 'byte' : 'bytes'}`),
      h('span.grow'),
      button('', () => copy(chosen === 'hex' ? hexLines(asBytes(), Infinity) : text), {
        icon: 'copy',
        class: 'quiet',
        label: `Copy the ${name}`,
        title: 'Copy',
      }),
      button(
        '',
        () => save(asBytes(), `${name}.${raw.kind === 'json' ? 'json' : raw.kind === 'text' ? 'txt' : 'bin'}`),
        { icon: 'download', class: 'quiet', label: `Download the ${name}`, title: 'Download' },
      ),
    ),
    h('pre.code', { tabindex: 0, 'aria-label': name }, content),
  );
}

/** What a page shows of a long text; the whole is a download away. */
const SHOWN_MAX = 200000;
const clip = (text) =>
  text.length > SHOWN_MAX
    ? `${text.slice(0, SHOWN_MAX)}\n… ${text.length - SHOWN_MAX} more characters: download it`
    : text;

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast('Copied.');
  } catch {
    toast('The browser does not allow that.', 'bad');
  }
}

function save(bytes, name) {
  const blob = URL.createObjectURL(new Blob([bytes]));
  const link = h('a', { href: blob, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(blob), 10000);
}

export const command = (text) =>
  h(
    'div.command',
    null,
    h('code', { tabindex: 0 }, text),
    button('', () => copy(text), { icon: 'copy', class: 'quiet', label: 'Copy this command', title: 'Copy' }),
  );

export function toast(text, kind = 'good', more = null) {
  const box = document.getElementById('toasts');
  const item = h(
    'div.toast',
    { class: kind, role: kind === 'bad' ? 'alert' : 'status' },
    icon(kind === 'bad' ? 'failures' : 'check'),
    h('span', null, text, more && h('small', null, more)),
    button('', () => item.remove(), { icon: 'close', class: 'quiet', label: 'Dismiss' }),
  );
  box.append(item);
  while (box.childElementCount > 4) box.firstChild.remove();
  setTimeout(() => item.remove(), kind === 'bad' ? 12000 : 5000);
}

export function toastError(error) {
  if (error instanceof Refused) toast(error.message, 'bad', error.help);
  else {
    console.error(error);
    toast(`This page has a fault: ${error.message}`, 'bad');
  }
}

/** Opens a dialog. `build` gets a function that closes it, and gives its content. */
export function dialog(title, build, { wide } = {}) {
  const close = () => box.close();
  const heading = h('h2', { id: 'dialog-title' }, title);
  const box = h('dialog.dialog', { class: wide ? 'wide' : '', 'aria-labelledby': 'dialog-title' });
  append(box, [
    h('header', null, heading, button('', close, { icon: 'close', class: 'quiet', label: 'Close' })),
    build(close),
  ]);
  box.addEventListener('close', () => box.remove());
  box.addEventListener('click', (event) => event.target === box && close());
  document.body.append(box);
  box.showModal();
  box.querySelector('[autofocus], .dialog-body input, .dialog-body textarea, .dialog-body select')?.focus();
  return box;
}

/** Asks before something is done, with the command that does the same. */
export function confirm({ title, text, action, kind = 'primary', commands = [], fields = [], run }) {
  const inputs = new Map();
  dialog(title, (close) =>
    h(
      'form',
      {
        method: 'dialog',
        onsubmit: async (event) => {
          event.preventDefault();
          const submit = event.target.querySelector('[type=submit]');
          submit.disabled = true;
          try {
            const done = await run(
              Object.fromEntries(
                [...inputs].map(([name, input]) => [name, input.type === 'checkbox' ? input.checked : input.value]),
              ),
            );
            close();
            if (done) toast(done);
          } catch (error) {
            submit.disabled = false;
            toastError(error);
          }
        },
      },
      h(
        'div.dialog-body',
        null,
        [text].flat().map((part) => (part instanceof Node ? part : part && h('p', null, part))),
        fields.map((field) => {
          const input = control(field);
          inputs.set(field.name, input);
          return fieldRow(field, input);
        }),
        commands.length > 0 &&
          h('details.same', null, h('summary', null, 'The same as a command'), commands.map(command)),
      ),
      h(
        'footer',
        null,
        button('Keep as it is', close),
        h('button.button', { type: 'submit', class: kind, autofocus: fields.length === 0 }, action),
      ),
    ),
  );
}

export function control({
  name,
  type = 'text',
  value = '',
  placeholder,
  options,
  required,
  rows,
  list,
  inputmode,
  min,
}) {
  const shared = { id: `field-${name}`, name, required, placeholder };
  if (options)
    return h(
      'select',
      shared,
      options.map(([key, text]) => h('option', { value: key, selected: key === value }, text)),
    );
  if (type === 'textarea') return h('textarea', { ...shared, rows: rows ?? 5, spellcheck: 'false', value });
  if (type === 'checkbox') return h('input', { ...shared, type, checked: value === true });
  return h('input', { ...shared, type, value, list, inputmode, min, autocomplete: 'off', spellcheck: 'false' });
}

export const fieldRow = ({ name, label, hint, type }, input) =>
  h(
    'div.field',
    { class: type === 'checkbox' ? 'check' : '' },
    h('label', { for: `field-${name}` }, label),
    input,
    hint && h('small', null, hint),
  );

/** The command line and curl line of an act. */
export const commands = (cli, method, path, body) => {
  const target = `${location.origin}${url(path)}`;
  const data = body === undefined ? '' : ` --json ${shellWord(JSON.stringify(body))}`;
  const verb = method === 'GET' || (method === 'POST' && body !== undefined) ? '' : ` -X ${method}`;
  return [`geartrain ${cli}`, `curl${verb}${data} ${shellWord(target)}`];
};

/** Names and values below each other. */
export const facts = (list) =>
  h(
    'dl.facts',
    null,
    list
      .filter(([, value]) => value !== null && value !== undefined && value !== false)
      .map(([name, value]) => h('div', { key: name }, h('dt', null, name), h('dd', null, value))),
  );

export const problem = (error) =>
  h(
    'div.notice.bad',
    { role: 'alert' },
    icon('failures'),
    h('div', null, h('strong', null, error.message), error.help && h('p', null, error.help)),
  );

/** A row of jobs, as lists of jobs show it. */
export const jobColumns = {
  jid: {
    label: 'Job',
    class: 'grow',
    cell: (job) =>
      h(
        'span.stack',
        null,
        h('a.name', { href: route('jobs', job.jid), title: job.jid }, job.klass),
        h('span.mono.muted', { title: job.jid }, shortJid(job.jid)),
      ),
  },
  state: {
    label: 'State',
    cell: (job) =>
      h('span.stack', null, badge(stateOf(job)), job.progress && job.state === 'running' && progress(job.progress)),
  },
  queue: { label: 'Queue', class: 'md', cell: (job) => queueLink(job.queue) },
  priority: { label: 'Priority', class: 'num lg', cell: (job) => count(job.priority) },
  tags: { label: 'Tags', class: 'lg', cell: (job) => h('span.tags', null, tags(job.tags)) },
  attempts: {
    label: 'Tries left',
    class: 'num lg',
    cell: (job) => `${Math.max(0, job.remaining)} of ${job.retries}`,
  },
  when: { label: 'Since', class: 'num sm', cell: (job) => jobTime(job) },
};

/** What is worth knowing about the time of a job in its state. */
export function jobTime(job) {
  if (job.state === 'scheduled') return time(job.due);
  if (job.state === 'complete') return time(job.completed);
  if (job.state === 'failed') return time(job.failure?.when);
  return time(job.history.at(-1)?.when ?? null);
}

export { absolute, compact, count };
