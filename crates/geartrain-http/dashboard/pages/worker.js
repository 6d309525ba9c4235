// One worker: what it can do, and the jobs that it holds.

import { ask, askAll, or } from '../api.js';
import { h } from '../dom.js';
import { plural, shellWord, time } from '../format.js';
import { can } from '../session.js';
import { HeldOrder, button, card, commands, confirm, empty, facts, jobColumns, table } from '../ui.js';
import { abilities, workerBadge } from './workers.js';

export default {
  title: (ctx) => ctx.arg,
  filter: (ctx) => ({ worker: ctx.arg }),
  begin(ctx) {
    ctx.state.order = new HeldOrder();
  },

  async load(ctx) {
    const [all, jobs] = await askAll([['workers'], ['workers', { worker: ctx.arg }]]);
    return { worker: or(all, []).find((each) => each.name === ctx.arg) ?? null, jobs: or(jobs, []) };
  },

  view({ worker, jobs }, ctx) {
    if (!worker)
      return card(
        null,
        {},
        empty(
          'workers',
          'This worker is not on the list',
          'It has held nothing and was not seen for a day, or never was.',
        ),
      );
    const { rows } = ctx.state.order.of('worker-jobs', jobs, (job) => job.jid);
    const { jid, state, queue, tags, attempts } = jobColumns;
    return [
      card(
        'Worker',
        {
          actions:
            can('operator') &&
            worker.running + worker.stalled > 0 &&
            button('Declare lost', () => declareLost(worker, ctx.done), { icon: 'failures', class: 'danger quiet' }),
        },
        h(
          'div.pad',
          null,
          facts([
            ['State', workerBadge(worker)],
            ['Seen', time(worker.seen, { both: true })],
            ['Can do', abilities(worker)],
          ]),
        ),
      ),
      card(
        plural(jobs.length, 'job held', 'jobs held'),
        { class: 'flush' },
        jobs.length === 0
          ? empty('running', 'It holds no job', null)
          : table({
              id: 'worker-jobs',
              label: 'Jobs of this worker',
              rows,
              rowKey: (job) => job.jid,
              columns: [
                jid,
                state,
                queue,
                tags,
                attempts,
                { label: 'Lock expires', class: 'num sm', cell: (job) => time(job.lock?.expires ?? null) },
              ],
            }),
      ),
    ];
  },
};

function declareLost(worker, done) {
  confirm({
    title: `Declare ${worker.name} lost`,
    text: [
      `Its ${plural(worker.running + worker.stalled, 'job goes', 'jobs go')} back to the front of the queue,`,
      'which uses up a retry and counts as a crash. Do this for a worker that is dead for certain.',
    ].join(' '),
    action: 'Declare lost',
    kind: 'danger',
    fields: [{ name: 'evidence', label: 'Evidence', placeholder: 'out of memory' }],
    commands: commands(
      `worker lost ${shellWord(worker.name)}`,
      'POST',
      `v1/workers/${encodeURIComponent(worker.name)}/lost`,
    ),
    run: async ({ evidence }) => {
      const { jids } = await ask('worker-lost', { worker: worker.name, ...(evidence && { evidence }) });
      done();
      return `${plural(jids.length, 'job')} went back.`;
    },
  });
}
