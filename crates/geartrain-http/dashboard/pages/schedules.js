// Recurring jobs: when they run next, and running one now.

import { ask, request } from '../api.js';
import { h } from '../dom.js';
import { absolute, count, duration, plural, shellWord, time } from '../format.js';
import { icon } from '../icons.js';
import { can } from '../session.js';
import {
  HeldOrder,
  badge,
  button,
  card,
  commands,
  confirm,
  empty,
  queueLink,
  route,
  table,
  toast,
  toastError,
} from '../ui.js';

const order = new HeldOrder();

export default {
  title: () => 'Schedules',
  filter: () => ({ event: ['put'] }),
  concerns: () => false,
  load: () => request('GET', 'v1/schedules'),

  view(schedules, ctx) {
    const add =
      can('operator') &&
      button('Add a recurring job', () => addSchedule(ctx.done), { icon: 'plus', class: 'primary' });
    if (schedules.length === 0)
      return card(
        null,
        {},
        empty(
          'schedules',
          'No recurring jobs',
          'They put a job by an interval, or by a cron expression in a time zone.',
          add,
        ),
      );
    const { rows } = order.of(
      'schedules',
      [...schedules].sort((one, other) => (one.next ?? Infinity) - (other.next ?? Infinity)),
      (each) => each.jid,
    );
    return card(
      null,
      { class: 'flush' },
      h('div.bulk', null, h('span.muted', null, plural(schedules.length, 'recurring job')), h('span.grow'), add),
      table({
        id: 'schedules',
        label: 'Recurring jobs',
        rows,
        rowKey: (each) => each.jid,
        rowClass: (each) => (each.paused ? 'dim' : ''),
        columns: [
          {
            label: 'Recurring job',
            class: 'grow',
            cell: (each) =>
              h(
                'span.stack',
                null,
                h(
                  'span.row.tight',
                  null,
                  h('span.name.strong', null, each.klass),
                  each.paused && badge('paused'),
                  each.error && h('span.badge.is-failed', { title: each.error }, icon('failures'), 'error'),
                ),
                h('span.mono.muted.clip', { title: each.jid }, each.jid),
                h('span.phone', null, rhythm(each)),
                h('span.phone', null, nextRuns(each)),
              ),
          },
          { label: 'Queue', class: 'md', cell: (each) => queueLink(each.queue) },
          {
            label: 'When',
            class: 'sm',
            cell: (each) => h('span.stack', null, rhythm(each), each.zone && h('span.muted.small', null, each.zone)),
          },
          { label: 'Next runs', class: 'sm', cell: nextRuns },
          { label: 'Runs', class: 'num lg', cell: (each) => count(each.count) },
          {
            label: 'Last',
            class: 'lg',
            cell: (each) =>
              each.last
                ? h('a.mono', { href: route('jobs', each.last), title: each.last }, `${each.last.slice(0, 10)}…`)
                : h('span.muted', null, '–'),
          },
          ...(can('operator')
            ? [
                {
                  label: '',
                  class: 'act',
                  cell: (each) =>
                    h(
                      'span.row.tight',
                      null,
                      button('Run now', () => runNow(each, ctx.done), {
                        icon: 'play',
                        class: 'folds',
                        title: 'Run now',
                        label: `Run now: ${each.klass}`,
                      }),
                      'paused' in each &&
                        button('', () => pause(each, ctx.done), {
                          icon: each.paused ? 'retry' : 'pause',
                          class: 'quiet',
                          label: `${each.paused ? 'Resume' : 'Pause'} ${each.klass}`,
                          title: each.paused ? 'Resume' : 'Pause',
                        }),
                      button('', () => remove(each, ctx.done), {
                        icon: 'trash',
                        class: 'quiet',
                        label: `Remove ${each.klass}`,
                        title: 'Remove',
                      }),
                    ),
                },
              ]
            : []),
        ],
      }),
    );
  },
};

export const rhythm = (each) =>
  h('span', { title: each.cron }, each.text ?? (each.every ? `every ${duration(each.every)}` : each.cron));

export function nextRuns(each) {
  const runs = each.next_runs ?? (each.next === null ? [] : [each.next]);
  if (each.paused || runs.length === 0) return h('span.muted', null, each.paused ? 'paused' : 'none');
  return h(
    'span.stack',
    null,
    time(runs[0]),
    runs.length > 1 &&
      h(
        'details.runs',
        null,
        h('summary', null, `${runs.length - 1} more`),
        h(
          'ol',
          null,
          runs.slice(1).map((run) => h('li', { key: run }, h('span.num', null, absolute(run)))),
        ),
      ),
  );
}

function runNow(each, done) {
  confirm({
    title: `Run ${each.klass} now`,
    text: `A job is put into ${each.queue} at once. The next regular run stays where it is.`,
    action: 'Run now',
    commands: commands(
      `recur run ${shellWord(each.jid)}`,
      'POST',
      `v1/schedules/${encodeURIComponent(each.jid)}/run`,
    ),
    run: async () => {
      const put = await ask('recur-run', { jid: each.jid });
      done();
      const jid = put?.jid ?? put?.last;
      toast(jid ? h('span', null, 'Put job ', h('a', { href: route('jobs', jid) }, jid)) : `${each.klass} was put.`);
    },
  });
}

async function pause(each, done) {
  try {
    await ask(each.paused ? 'recur-resume' : 'recur-pause', { jid: each.jid });
    toast(`${each.klass} is ${each.paused ? 'resumed' : 'paused'}.`);
    done();
  } catch (error) {
    toastError(error);
  }
}

function remove(each, done) {
  confirm({
    title: `Remove ${each.klass}`,
    text: 'It puts no more jobs. The jobs that it has put stay.',
    action: 'Remove',
    kind: 'danger',
    commands: commands(`recur rm ${shellWord(each.jid)}`, 'DELETE', `v1/schedules/${encodeURIComponent(each.jid)}`),
    run: async () => {
      await ask('unrecur', { jids: [each.jid] });
      done();
      return `${each.klass} is removed.`;
    },
  });
}

function addSchedule(done) {
  confirm({
    title: 'Add a recurring job',
    action: 'Add',
    fields: [
      { name: 'queue', label: 'Queue', required: true, placeholder: 'reports' },
      { name: 'klass', label: 'Klass', required: true, placeholder: 'daily' },
      {
        name: 'when',
        label: 'When',
        required: true,
        placeholder: 'every 15 minutes',
        hint: 'An interval such as 15m, a cron expression, or a phrase such as weekdays at 9am.',
      },
      { name: 'jid', label: 'Id', placeholder: 'made up if empty' },
    ],
    commands: commands("recur add reports daily '{}' --cron '0 9 * * mon-fri'", 'POST', 'v1/schedules', {
      queue: 'reports',
      klass: 'daily',
      cron: '0 9 * * mon-fri',
    }),
    run: async ({ queue, klass, when, jid }) => {
      const isInterval = /^[\d.]+\s*(s|m|h|d|w)?([\d.]+\s*[smhd])*$/.test(when.trim());
      await ask('recur', {
        queue,
        klass,
        ...(jid && { jid }),
        ...(isInterval ? { every: when.trim() } : { cron: when.trim() }),
      });
      done();
      return `${klass} recurs.`;
    },
  });
}
