// A worker for the soak test: it writes what it has done into a ledger, and ends when it is told to.
//
//     soak.mjs URL QUEUE NAME LEDGER

import { appendFileSync } from 'node:fs'
import { Retry, Worker } from '../index.js'

const [url, queue, name, ledger] = process.argv.slice(2)
const worker = new Worker([queue], { url, name, concurrency: 8, heartbeat: 0.2, grace: 0.5 })
// One write to a file that is only appended to, so that lines of several processes do not mix.
const note = (word, job) => appendFileSync(ledger, `${word} ${job.jid}\n`)
const lost = (job) => new Promise((resolve) => job.signal.addEventListener('abort', resolve))

worker.on('double', (job) => {
  note('done', job)
  return job.payload.n * 2
})

worker.on('flaky', (job) => {
  if (job.remaining === job.document.retries) throw new Retry('the first attempt fails', { seconds: 0 })
  note('done', job)
})

worker.on('broken', (job) => {
  const error = new Error(String(job.payload.n))
  error.name = 'KeyError'
  throw error
})

worker.on('strange', () => 1n) // no JSON

worker.on('endless', async (job) => {
  note('began', job)
  await lost(job)
  note('lost', job)
})

worker.on('slow', async (job) => {
  // Longer than the grace on its first attempt, so that the worker hands it back.
  note('began', job)
  if (name === 'first') await lost(job)
  else note('done', job)
})

console.log('ready')
await worker.run()
