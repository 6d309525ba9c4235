// The frame of all pages: navigation, search, live updates, keyboard.

import { Refused, askAll, or, request, url } from './api.js';
import { putJob } from './actions.js';
import { h, render } from './dom.js';
import { compact, count, tick } from './format.js';
import { hideTip } from './charts.js';
import { icon, logo } from './icons.js';
import { Live } from './live.js';
import { onPref, prefs, setPref } from './prefs.js';
import { can, isAdmin, loadSession, session } from './session.js';
import { button, dialog, problem, route, skeleton, toastError } from './ui.js';

import audit from './pages/audit.js';
import events from './pages/events.js';
import failures from './pages/failures.js';
import group from './pages/group.js';
import job from './pages/job.js';
import jobs from './pages/jobs.js';
import log from './pages/log.js';
import overview from './pages/overview.js';
import queue from './pages/queue.js';
import queues from './pages/queues.js';
import schedules from './pages/schedules.js';
import settings from './pages/settings.js';
import tracked from './pages/tracked.js';
import worker from './pages/worker.js';
import workers from './pages/workers.js';

/** Pages by the first part of the route; a second part is the name of one thing. */
const PAGES = {
  '': [overview],
  queues: [queues, queue],
  jobs: [jobs, job],
  failures: [failures, group],
  workers: [workers, worker],
  schedules: [schedules],
  tracked: [tracked],
  events: [events],
  log: [log],
  settings: [settings],
  audit: [audit],
};

const NAV = [
  ['', 'Overview', 'overview', 'o'],
  ['queues', 'Queues', 'queues', 'q'],
  ['jobs', 'Jobs', 'jobs', 'j'],
  ['failures', 'Failures', 'failures', 'f'],
  ['workers', 'Workers', 'workers', 'w'],
  ['schedules', 'Schedules', 'schedules', 's'],
  null,
  ['tracked', 'Tracked', 'tracked', 't'],
  ['events', 'Events', 'events', 'e'],
  ['log', 'Log', 'log', 'l'],
  null,
  ['settings', 'Settings', 'settings', ','],
  ['audit', 'Audit', 'audit', 'a'],
];

const root = document.getElementById('app');
const counts = { failures: null, tracked: null };
let liveState = 'polling';
let current = null;

const live = new Live((state) => {
  if (state !== liveState) {
    liveState = state;
    drawFrame();
  }
});

function readRoute() {
  const [path, search = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [name = '', ...rest] = path.split('/').map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { name, arg: rest.length ? rest.join('/') : null, search: new URLSearchParams(search) };
}

async function open() {
  hideTip();
  const { name, arg, search } = readRoute();
  const page = PAGES[name]?.[arg === null ? 0 : 1];
  const mine = { page, name, arg, search, state: {}, data: null, error: null };
  current = mine;
  if (!page) {
    mine.error = new Refused({ code: 'not-found', message: 'There is no such page.', help: null }, 404);
    live.open(null);
    document.title = 'geartrain';
    return draw();
  }
  mine.title = page.title(mine);
  mine.rerender = () => current === mine && draw();
  mine.reload = async () => {
    const data = await page.load(mine);
    if (current !== mine) return;
    mine.data = data;
    mine.error = null;
    mine.title = page.title(mine);
    document.title = `${mine.title} · geartrain`;
    draw();
  };
  mine.done = () => mine.reload().catch(toastError);
  document.title = `${mine.title} · geartrain`;
  document.body.classList.remove('nav-open');
  page.begin?.(mine);
  draw();
  try {
    await mine.reload();
  } catch (error) {
    if (current !== mine) return;
    mine.error = error;
    if (!(error instanceof Refused)) console.error(error);
    draw();
  }
  if (current !== mine) return;
  scrollTo(0, 0);
  live.open({
    filter: page.filter?.(mine) ?? null,
    concerns: page.concerns && ((event) => page.concerns(event, mine)),
    onEvent: page.onEvent && ((event) => page.onEvent(event, mine)),
    refresh: async () => {
      if (page.once) return;
      try {
        await mine.reload();
      } catch (error) {
        // What is shown stays, and the frame says that the server does not answer.
        if (current === mine && error.code !== 'offline') {
          mine.error = error;
          draw();
        }
        throw error;
      }
    },
  });
  loadCounts();
}

/** The numbers beside the navigation. */
async function loadCounts() {
  try {
    const [failed, trackedJobs] = await askAll([['failed'], ['tracked']]);
    counts.failures = or(failed, []).reduce((sum, each) => sum + each.count, 0);
    counts.tracked = or(trackedJobs, { jobs: [] }).jobs.length;
    drawFrame();
  } catch {
    // They are shown again with the next page.
  }
}

let isMounted = false;

function draw() {
  drawFrame();
  const main = document.getElementById('main');
  const { page, data, error } = current;
  let content;
  try {
    content =
      error && !(data && error.code === 'offline')
        ? problem(error)
        : data === null
          ? skeleton(8)
          : page.view(data, current);
  } catch (fault) {
    console.error(fault);
    content = problem(fault);
  }
  render(main, h('div.page', { key: `${current.name}/${current.arg}` }, content));
}

const LIVE = {
  live: ['Live', 'Updates come as they happen. Pause them.'],
  polling: ['Polling', 'Updated every two seconds. Pause that.'],
  paused: ['Paused', 'Nothing is updated. Go on.'],
  offline: ['No answer', 'The server does not answer. The page tries again.'],
};

function drawFrame() {
  if (!isMounted) {
    root.replaceChildren(
      h(
        'a.skip',
        {
          href: '#main',
          onclick: (event) => {
            event.preventDefault();
            document.getElementById('main').focus();
          },
        },
        'To the content',
      ),
      h('div', { id: 'frame' }),
      h('main', { id: 'main', tabindex: -1 }),
    );
    isMounted = true;
  }
  const [liveText, liveTitle] = LIVE[liveState];
  const active = current?.name ?? '';
  const parent = NAV.find((item) => item?.[0] === active);
  render(
    document.getElementById('frame'),
    h(
      'nav.side',
      { id: 'side', 'aria-label': 'Pages' },
      h('a.brand', { href: '#/' }, logo(), h('span', null, 'geartrain')),
      h(
        'ul',
        null,
        NAV.map((item, index) => {
          if (!item) return h('li.line', { key: index, 'aria-hidden': 'true' });
          const [name, label, picture] = item;
          if (name === 'audit' && !isAdmin()) return null;
          const number = counts[name];
          return h(
            'li',
            { key: name },
            h(
              'a',
              { href: `#/${name}`, 'aria-current': active === name ? 'page' : null },
              icon(picture),
              h('span', null, label),
              number ? h('span.count', { class: name === 'failures' ? 'bad' : '' }, compact(number)) : null,
            ),
          );
        }),
      ),
      h(
        'div.side-foot',
        null,
        h(
          'div.row',
          null,
          ['light', 'dark', 'system'].map((theme) =>
            button('', () => setPref('theme', theme), {
              icon: { light: 'sun', dark: 'moon', system: 'system' }[theme],
              class: prefs.theme === theme ? 'quiet on' : 'quiet',
              label: `Theme: ${theme}`,
              title: `Theme: ${theme}`,
            }),
          ),
          h('span.grow'),
          button(
            prefs.zone === 'utc' ? 'UTC' : 'Local',
            () => setPref('zone', prefs.zone === 'utc' ? 'local' : 'utc'),
            {
              icon: 'globe',
              class: 'quiet',
              title: 'Times in UTC or in the zone of this browser',
              label: `Times are shown in ${prefs.zone === 'utc' ? 'UTC' : 'local time'}: switch`,
            },
          ),
        ),
        h(
          'div.row.who',
          null,
          h('span.badge.role', null, session.read_only ? `${session.role}, read-only` : session.role),
          session.name && h('span.name', { title: session.name }, session.name),
          h('span.grow'),
          session.login &&
            h(
              'form',
              { method: 'post', action: url('logout') },
              h('button.button.quiet', { type: 'submit', 'aria-label': 'Log out', title: 'Log out' }, icon('logout')),
            ),
        ),
      ),
    ),
    h('button.shade', {
      type: 'button',
      'aria-label': 'Close the navigation',
      tabindex: -1,
      onclick: () => document.body.classList.remove('nav-open'),
    }),
    h(
      'header.top',
      null,
      button(
        '',
        () => {
          document.body.classList.toggle('nav-open');
          document.querySelector('#side a').focus();
        },
        { icon: 'menu', class: 'quiet menu', label: 'Navigation' },
      ),
      current?.arg && parent && h('a.parent', { href: `#/${current.name}` }, parent[1]),
      h('h1', null, current?.title ?? 'geartrain'),
      h(
        'form.search',
        { role: 'search', 'aria-label': 'All jobs', onsubmit: search },
        icon('jobs'),
        h('input.search-input', {
          id: 'search',
          type: 'search',
          name: 'where',
          'aria-label': 'Search jobs',
          placeholder: 'Search jobs: state=failed tag=vip',
          autocomplete: 'off',
          spellcheck: 'false',
        }),
        h('kbd', { 'aria-hidden': 'true' }, '/'),
      ),
      h(
        'button.live',
        {
          type: 'button',
          class: `is-${liveState}`,
          title: liveTitle,
          onclick: () => {
            setPref('paused', !prefs.paused);
            live.update();
          },
        },
        h('i'),
        h('span', null, liveText),
      ),
      can('operator') && button('Put job', openPut, { icon: 'plus', class: 'primary put', label: 'Put job' }),
    ),
  );
}

async function openPut() {
  const queues = await request('GET', 'v1/queues').catch(() => []);
  putJob(current?.name === 'queues' ? (current.arg ?? '') : '', { queues: queues.map((queue) => queue.name) });
}

function search(event) {
  event.preventDefault();
  const input = event.target.elements.where;
  const text = input.value.trim();
  input.value = '';
  input.blur();
  location.hash =
    text !== '' && !/[=<>\s]/.test(text)
      ? route('jobs', text)
      : `#/jobs${text ? `?where=${encodeURIComponent(text)}` : ''}`;
}

const KEYS = [
  ['/', 'Search jobs'],
  ...NAV.filter(Boolean).map(([, label, , key]) => [`g ${key}`, label]),
  ['n', 'Put a job'],
  ['p', 'Pause or resume updates'],
  ['r', 'Refresh'],
  ['d', 'Light or dark'],
  ['?', 'This help'],
  ['Esc', 'Close'],
];

function help() {
  dialog('Keyboard', () =>
    h(
      'div.dialog-body',
      null,
      h(
        'dl.keys',
        null,
        KEYS.map(([key, text]) =>
          h(
            'div',
            null,
            h(
              'dt',
              null,
              key.split(' ').map((part) => h('kbd', null, part)),
            ),
            h('dd', null, text),
          ),
        ),
      ),
    ),
  );
}

let afterG = 0;

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') document.body.classList.remove('nav-open');
  const isTyping = event.target.closest?.('input, textarea, select, dialog[open]');
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const go = NAV.filter(Boolean).find(([, , , key]) => key === event.key);
  if (go && performance.now() - afterG < 1500) {
    afterG = 0;
    location.hash = `#/${go[0]}`;
    return;
  }
  afterG = event.key === 'g' ? performance.now() : 0;
  const actions = {
    '/': () => document.getElementById('search').focus(),
    '?': help,
    n: () => can('operator') && openPut(),
    p: () => document.querySelector('.live').click(),
    r: () => current?.done?.(),
    d: () => setPref('theme', document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'),
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

onPref((key) => {
  if (key === 'paused') live.update();
  draw();
});

setInterval(() => !document.hidden && !prefs.paused && tick(), 1000);
addEventListener('hashchange', open);
setInterval(() => !document.hidden && !prefs.paused && loadCounts(), 15000);

try {
  await loadSession();
  open();
} catch (error) {
  render(root, problem(error));
}

export { count };
