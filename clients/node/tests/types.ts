// Checked by the TypeScript compiler and never run: what programs write has these types, and mistakes are errors.

import { Client, Fail, GeartrainError, Job, JobFailed, Retry, Worker } from '../index.js'
import { LockLost, NoSuchJob, Unfinished } from '../index.js'
import type { PutOptions, Reason, Result } from '../index.js'

interface Welcome {
  to: string
}

const options: PutOptions = { keep_result: '1h', priority: 5, tags: ['new'], on_dependency_failure: 'skip' }
const client = new Client('redis://127.0.0.1:7411')
const jid: string = await client.put('mail', 'welcome', { to: 'ann' }, options)
await client.put('mail', 'welcome', new Uint8Array([1, 2]))
const reasons: Reason[] = await client.why(jid)
const result: Result<{ sent: string }> = await client.result(jid, 30)
const sent: string = result.value.sent
const waited: { sent: string } = await client.wait(jid, 30)
const count: number = await client.cancel([jid], 'not needed')
for await (const event of client.events('0')) console.log(event.position, reasons, sent, waited, count)
client.close()

try {
  await client.get(jid)
} catch (error) {
  if (error instanceof NoSuchJob || error instanceof LockLost || error instanceof Unfinished) {
    const refusal: GeartrainError = error
    const code: string = refusal.code
    console.log(code, refusal.help)
  }
  if (error instanceof JobFailed) console.log(error.jid, error.how, error.group, error.reason)
}

const worker = new Worker(['mail'], { concurrency: 8, heartbeat: 5, grace: 30 })
worker.on<Welcome>('welcome', async (job: Job<Welcome>) => {
  job.signal.throwIfAborted()
  await job.progress(1, 2, 'half')
  if (job.payload.to === '') throw new Fail('no-address', 'the payload has no `to`')
  throw new Retry('busy', { seconds: 60 })
})
await worker.run({ drain: true })

// @ts-expect-error: the klass is missing
await client.put('mail')
// @ts-expect-error: there is no such option
await client.put('mail', 'welcome', {}, { priorty: 5 })
// @ts-expect-error: the queues are a list
new Worker('mail')
// @ts-expect-error: a code is a text
const wrong: number = new GeartrainError('no').code
