// What can be done to jobs and queues: each with a question, the same as a command, and a message when it is done.

import { ask, request } from './api.js';
import { h } from './dom.js';
import { plural, shellWord } from './format.js';
import { Raw } from './json.js';
import { can } from './session.js';
import { button, commands, confirm, jobLink, quoteTerm, stateOf, toast, toastError } from './ui.js';

const word = shellWord;
const jobPath = (jid, verb) => `v1/jobs/${encodeURIComponent(jid)}${verb ? `/${verb}` : ''}`;
const list = (text) => text.split(/[\s,]+/).filter(Boolean);

/** A document with a payload as it was typed: JSON as it is, other text as a string. */
function withPayload(fields, text) {
  const given = Object.fromEntries(
    Object.entries(fields).filter(([, value]) => value !== '' && value !== undefined && value !== null),
  );
  const body = JSON.stringify(given);
  if (text.trim() === '') return body;
  let payload = text;
  try {
    JSON.parse(text);
  } catch {
    payload = JSON.stringify(text);
  }
  return `${body.slice(0, -1)}${body === '{}' ? '' : ','}"payload":${payload}}`;
}

export function putJob(queue = '', { queues = [], klass = '', payload = '' } = {}) {
  const names = h(
    'datalist',
    { id: 'queue-names' },
    queues.map((name) => h('option', { value: name })),
  );
  confirm({
    title: 'Put a job',
    text: names,
    action: 'Put job',
    fields: [
      { name: 'queue', label: 'Queue', value: queue, required: true, list: 'queue-names', placeholder: 'mail' },
      {
        name: 'klass',
        label: 'Klass',
        value: klass,
        required: true,
        placeholder: 'welcome',
        hint: 'What code runs it.',
      },
      {
        name: 'payload',
        label: 'Payload',
        type: 'textarea',
        value: payload,
        placeholder: '{"to": "ann@example.org"}',
        hint: 'JSON, or any text.',
      },
      { name: 'in', label: 'Delay', placeholder: '10m', hint: 'A duration such as 1h30m. Empty: now.' },
      { name: 'priority', label: 'Priority', placeholder: '0', inputmode: 'numeric', hint: 'Higher goes first.' },
      { name: 'tags', label: 'Tags', placeholder: 'spring, vip' },
      { name: 'keep_result', label: 'Keep the result', type: 'checkbox', value: true },
    ],
    commands: commands('put QUEUE KLASS PAYLOAD', 'POST', 'v1/jobs', { queue: 'QUEUE', klass: 'KLASS' }),
    run: async (form) => {
      const fields = {
        queue: form.queue,
        klass: form.klass,
        in: form.in,
        priority: form.priority === '' ? null : Number(form.priority),
        tags: list(form.tags),
        keep_result: form.keep_result || null,
      };
      if (fields.tags.length === 0) delete fields.tags;
      const put = await request('POST', 'v1/batch', `{"put":${withPayload(fields, form.payload)}}`);
      toast(h('span', null, 'Put job ', jobLink(put.jid), '.'));
    },
  });
}

/** Does something at once, and says so. */
async function act(text, run, done) {
  try {
    await run();
    toast(text);
    done?.();
  } catch (error) {
    toastError(error);
  }
}

export function requeueJob(job, done, { edit = false } = {}) {
  const raw =
    job.payload instanceof Raw && job.payload.kind !== 'bytes'
      ? job.payload.kind === 'text'
        ? JSON.parse(job.payload.text)
        : job.payload.text
      : null;
  confirm({
    title: job.state === 'scheduled' ? 'Run this job now' : 'Requeue this job',
    text:
      job.state === 'running'
        ? 'A worker has this job. It loses the lock, and the job runs again from the beginning.'
        : 'The job is put again, with all of its retries.',
    action: 'Requeue',
    fields: [
      { name: 'queue', label: 'Queue', value: job.queue ?? '', placeholder: 'the one it was in' },
      { name: 'in', label: 'Delay', placeholder: 'none' },
      ...(edit && raw !== null ? [{ name: 'payload', label: 'Payload', type: 'textarea', rows: 8, value: raw }] : []),
    ],
    commands: commands(`requeue ${word(job.jid)}`, 'POST', jobPath(job.jid, 'requeue'), {}),
    run: async (form) => {
      const body = withPayload(
        { jid: job.jid, queue: form.queue, in: form.in },
        form.payload === undefined || form.payload === raw ? '' : form.payload,
      );
      const { queue } = await request('POST', 'v1/batch', `{"requeue":${body}}`);
      done?.();
      return `The job is in ${queue} again.`;
    },
  });
}

export function cancelJob(job, done) {
  const dependents = job.dependents.length;
  confirm({
    title: 'Cancel this job',
    text: [
      job.state === 'running' ? 'A worker has this job: it loses the lock and should stop.' : 'The job is removed.',
      dependents > 0 && `${plural(dependents, 'job depends', 'jobs depend')} on it.`,
    ].filter(Boolean),
    action: 'Cancel job',
    kind: 'danger',
    fields: [
      { name: 'because', label: 'Reason', placeholder: 'kept with the cancelled job' },
      ...(dependents > 0 ? [{ name: 'cascade', label: 'Cancel those that depend on it too', type: 'checkbox' }] : []),
    ],
    commands: commands(`cancel ${word(job.jid)}`, 'DELETE', jobPath(job.jid)),
    run: async ({ because, cascade }) => {
      const { cancelled } = await ask('cancel', {
        jid: job.jid,
        ...(because && { because }),
        ...(cascade && { cascade }),
      });
      done?.();
      return `Cancelled ${plural(cancelled, 'job')}.`;
    },
  });
}

export function changePriority(job, done) {
  confirm({
    title: 'Change the priority',
    text: 'Jobs with a higher priority go first.',
    action: 'Change',
    fields: [
      { name: 'priority', label: 'Priority', value: String(job.priority), required: true, inputmode: 'numeric' },
    ],
    commands: commands(`priority ${word(job.jid)} 10`, 'POST', jobPath(job.jid, 'priority'), { priority: 10 }),
    run: async ({ priority }) => {
      await ask('priority', { jid: job.jid, priority: Number(priority) });
      done?.();
      return `The priority is ${priority}.`;
    },
  });
}

export function addTags(job, done) {
  confirm({
    title: 'Add tags',
    action: 'Add',
    fields: [{ name: 'tags', label: 'Tags', required: true, placeholder: 'checked, vip' }],
    commands: commands(`tag ${word(job.jid)} checked`, 'POST', jobPath(job.jid, 'tag'), { tags: ['checked'] }),
    run: async ({ tags }) => {
      await ask('tag', { jid: job.jid, tags: list(tags) });
      done?.();
      return 'Tagged.';
    },
  });
}

export const removeTag = (job, tag, done) =>
  act(`Removed the tag ${tag}.`, () => ask('untag', { jid: job.jid, tags: [tag] }), done);

export const track = (job, done) =>
  act(
    job.tracked ? 'The job is no longer tracked.' : 'The job is tracked.',
    () => ask(job.tracked ? 'untrack' : 'track', { jid: job.jid }),
    done,
  );

export function timeOutJob(job, done) {
  confirm({
    title: 'Take the job from its worker',
    text: [
      'The lock is lost at once, and another worker may take the job.',
      'A worker that still runs it cannot complete it.',
    ],
    action: 'Take it away',
    kind: 'danger',
    commands: commands(`timeout ${word(job.jid)}`, 'POST', jobPath(job.jid, 'timeout')),
    run: async () => {
      await ask('timeout', { jids: [job.jid] });
      done?.();
      return 'The job is free again.';
    },
  });
}

export function removeDependencies(job, done) {
  confirm({
    title: 'Remove all dependencies',
    text: `The job no longer waits for ${plural(job.dependencies.length, 'other job')}.`,
    action: 'Remove',
    commands: commands(`undepend ${word(job.jid)} --all`, 'POST', jobPath(job.jid, 'undepend'), { all: true }),
    run: async () => {
      await ask('undepend', { jid: job.jid, all: true });
      done?.();
      return 'The job waits for no other.';
    },
  });
}

/** The buttons of a job that fit its state. */
export function jobButtons(job, done) {
  if (!can('operator')) return [];
  const state = stateOf(job);
  return [
    state === 'scheduled' && button('Run now', () => requeueJob(job, done), { icon: 'play' }),
    ['failed', 'complete'].includes(state) &&
      button('Requeue', () => requeueJob(job, done), { icon: 'retry', class: state === 'failed' ? 'primary' : '' }),
    ['failed', 'complete'].includes(state) &&
      button('Edit and requeue', () => requeueJob(job, done, { edit: true }), { class: 'lg' }),
    ['running', 'stalled'].includes(state) && button('Take away', () => timeOutJob(job, done), { icon: 'hand' }),
    state === 'depends' && button('Remove dependencies', () => removeDependencies(job, done), { icon: 'link' }),
    state !== 'complete' && button('Priority', () => changePriority(job, done), { icon: 'up' }),
    button('Tag', () => addTags(job, done), { icon: 'tag' }),
    button(job.tracked ? 'Untrack' : 'Track', () => track(job, done), { icon: 'tracked' }),
    state !== 'complete' && button('Cancel', () => cancelJob(job, done), { icon: 'cancel', class: 'danger' }),
  ];
}

export function pauseQueue(queue, done) {
  const verb = queue.paused ? 'resume' : 'pause';
  const run = () => ask(verb, { queues: [queue.name] });
  if (queue.paused) return act(`${queue.name} is resumed.`, run, done);
  confirm({
    title: `Pause ${queue.name}`,
    text: [
      `Workers get no more jobs of this queue: ${plural(queue.waiting, 'waiting job')} wait until it is resumed.`,
      'Running jobs go on.',
    ],
    action: 'Pause',
    commands: commands(`pause ${word(queue.name)}`, 'POST', `v1/queues/${encodeURIComponent(queue.name)}/pause`),
    run: async () => {
      await run();
      done?.();
      return `${queue.name} is paused.`;
    },
  });
}

export function retryGroup({ group, count }, done) {
  confirm({
    title: `Retry ${plural(count, 'failed job')}`,
    text: `All jobs of the group ${group} are put again where they were, with all of their retries.`,
    action: `Retry ${plural(count, 'job')}`,
    commands: commands(`unfail ${word(group)}`, 'POST', `v1/failures/${encodeURIComponent(group)}/unfail`),
    run: async () => {
      const { moved } = await ask('unfail', { group });
      done?.();
      return `Put ${plural(moved, 'job')} again.`;
    },
  });
}

/** Bulk acts on all jobs that a filter selects: [name, label, verb of the button, fields]. */
const BULK = {
  requeue: { label: 'Requeue', fields: [], kind: 'primary' },
  unfail: { label: 'Retry failed', fields: [], kind: 'primary' },
  cancel: { label: 'Cancel', fields: [{ name: 'because', label: 'Reason' }], kind: 'danger' },
  priority: {
    label: 'Change priority of',
    fields: [{ name: 'priority', label: 'Priority', required: true, inputmode: 'numeric' }],
    kind: 'primary',
  },
  tag: { label: 'Tag', fields: [{ name: 'tags', label: 'Tags', required: true }], kind: 'primary' },
  untag: { label: 'Untag', fields: [{ name: 'tags', label: 'Tags', required: true }], kind: 'primary' },
};

/** Counts what a filter selects, asks with that number, and does it to all of them. */
export async function bulk(name, where, done) {
  const { label, fields, kind } = BULK[name];
  const filter = where.trim() === '' ? { all: true } : { where };
  const sample = name === 'priority' ? { priority: 0 } : name === 'tag' || name === 'untag' ? { tags: ['x'] } : {};
  let preview;
  try {
    preview = await ask(name, { ...filter, ...sample, dry_run: true });
  } catch (error) {
    return toastError(error);
  }
  if (preview.matching === 0) return toast('No job is selected by this filter.', 'bad');
  const option = where.trim() === '' ? '--all' : `--where ${word(where)}`;
  const argument = name === 'priority' ? ' 10' : name === 'tag' || name === 'untag' ? ' checked' : '';
  confirm({
    title: `${label} ${plural(preview.matching, 'job')}`,
    text: [
      `Exactly ${plural(preview.matching, 'job')} ${preview.matching === 1 ? 'is' : 'are'} selected now by:`,
      h('code.block', null, where.trim() || 'all jobs'),
      h(
        'p',
        null,
        'Among them: ',
        preview.samples.map((job, index) => [index > 0 && ', ', jobLink(job.jid), ` (${job.klass})`]),
      ),
    ],
    action: `${label} ${plural(preview.matching, 'job')}`,
    kind,
    fields,
    commands: commands(`${name}${argument} ${option}`, 'POST', `v1/bulk/${name}`, {
      ...filter,
      ...(name === 'priority' ? { priority: 10 } : argument ? { tags: ['checked'] } : {}),
    }),
    run: async (form) => {
      const given = {
        ...(form.priority !== undefined && { priority: Number(form.priority) }),
        ...(form.tags !== undefined && { tags: list(form.tags) }),
        ...(form.because && { because: form.because }),
      };
      const sum = await ask(name, { ...filter, ...given });
      done?.();
      const refused = sum.refused > 0 ? ` ${plural(sum.refused, 'job')} refused: ${sum.refusals[0]?.why ?? ''}.` : '';
      return `Changed ${plural(sum.acted, 'job')}.${refused}`;
    },
  });
}

/** Does something to chosen jobs, which no filter selects: one by one in a batch. */
export function forJobs(name, jobs, done) {
  const { label, fields, kind } = BULK[name];
  confirm({
    title: `${label} ${plural(jobs.length, 'chosen job')}`,
    action: `${label} ${plural(jobs.length, 'job')}`,
    kind,
    fields,
    commands:
      jobs.length === 1 ? commands(`${name} ${word(jobs[0])}`, 'POST', 'v1/batch', { [name]: { jid: jobs[0] } }) : [],
    run: async (form) => {
      const outcomes = await request(
        'POST',
        'v1/batch',
        jobs.map((jid) => ({ [name]: { jid, ...(form.because && { because: form.because }) } })),
      );
      const refused = outcomes.filter((outcome) => outcome?.error);
      if (refused.length)
        toast(refused[0].error.message, 'bad', refused.length > 1 ? `and ${refused.length - 1} more` : null);
      done?.();
      return `Changed ${plural(jobs.length - refused.length, 'job')}.`;
    },
  });
}

export const groupFilter = (group) => `state=failed group=${quoteTerm(group)}`;
