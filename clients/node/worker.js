// A worker: runs the jobs of queues with handlers, and keeps their locks.

import os from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, GeartrainError, LockLost, decode, encode } from './client.js'

const POP_SECONDS = 1 // so that a signal is noticed at once
const LOCK_GONE = ['lock-lost', 'no-such-job', 'not-running', 'held-by-another']
const MESSAGE_CHARS = 2000
const RELEASE_MS = 5000 // how long handing back may take; the lock of a job that is not handed back expires

/** Thrown by a handler: the job is retried after `seconds`, or when its backoff says. Uses up a retry. */
export class Retry extends Error {
  constructor(message = '', { seconds = null, group = null } = {}) {
    super(message)
    Object.assign(this, { name: 'Retry', seconds, group })
  }
}

/** Thrown by a handler: the job fails now, into a group of failures. */
export class Fail extends Error {
  constructor(group, message) {
    super(message)
    Object.assign(this, { name: 'Fail', group })
  }
}

/** A job that this worker holds. */
export class Job {
  #client
  #lost = new AbortController()

  constructor(client, document) {
    this.#client = client
    const { jid, queue, klass, remaining, token, payload } = document
    Object.assign(this, { jid, queue, klass, remaining, token, payload: decode(payload), document })
  }

  /** Aborted when the lock is lost, the job is cancelled, or the worker hands it back: stop working on it. */
  get signal() {
    return this.#lost.signal
  }

  /** Marks the job as not this worker's any more. */
  lose() {
    this.#lost.abort(new LockLost(`the lock on job ${this.jid} is lost`, 'lock-lost'))
  }

  /** An operation of this attempt, such as 'chunk'. */
  ask(operation, fields = {}) {
    return this.#client.ask(operation, { jid: this.jid, token: this.token, ...fields })
  }

  /** Reports progress: `part` of `whole`. */
  async progress(part, whole, text = null) {
    this.signal.throwIfAborted()
    await this.ask('progress', { part, whole, text })
  }
}

/**
 * Runs jobs of queues with handlers by klass, `concurrency` at a time. What a handler returns is the result. Retry and
 * Fail say what becomes of the job; any other error is a retry whose group is the name of the error. `run` ends after
 * SIGTERM or SIGINT: running jobs have `grace` seconds to finish, and are then handed back without using up a retry.
 */
export class Worker {
  #client
  #running = new Map()
  #stopping = false
  #changes = [] // what waits until a job has ended, or the worker is to stop

  constructor(
    queues,
    { url, name = `${os.hostname()}-${process.pid}`, concurrency = 1, heartbeat = 5, grace = 30 } = {},
  ) {
    Object.assign(this, { queues, name, concurrency, heartbeat, grace, handlers: new Map() })
    this.#client = new Client(url)
  }

  /** The function runs jobs of this klass. */
  on(klass, handler) {
    this.handlers.set(klass, handler)
    return this
  }

  /** Ends `run`, as SIGTERM does. */
  stop() {
    this.#stopping = true
    this.#change()
  }

  /** Runs jobs until it is stopped; with `drain` until the queues have no job that is ready. */
  async run({ drain = false } = {}) {
    const stop = () => this.stop()
    process.on('SIGTERM', stop).on('SIGINT', stop)
    const beats = setInterval(() => this.#beat().catch(() => {}), this.heartbeat * 1000)
    try {
      await this.#pops(drain)
      await this.#finish()
    } finally {
      clearInterval(beats)
      process.off('SIGTERM', stop).off('SIGINT', stop)
      this.#client.close()
    }
  }

  async #pops(drain) {
    let pause = 100
    while (!this.#stopping) {
      const free = this.concurrency - this.#running.size
      if (!free) {
        await this.#nextChange()
        continue
      }
      let found
      try {
        const klasses = [...this.handlers.keys()]
        found = await this.#client.ask('pop', { queues: this.queues, worker: this.name, count: free, klasses },
          drain ? 0 : POP_SECONDS)
        pause = 100
      } catch (error) {
        if (error instanceof GeartrainError && error.code !== 'unavailable') throw error
        console.warn(`geartrain: cannot ask for jobs, trying again in ${pause / 1000} seconds: ${error.message}`)
        await Promise.race([sleep(pause), this.#nextChange()])
        pause = Math.min(pause * 2, 10_000)
        continue
      }
      for (const document of found) this.#start(new Job(this.#client, document))
      if (drain && !found.length && !this.#running.size) return
      if (drain && !found.length) await this.#nextChange()
    }
  }

  #nextChange() {
    return new Promise((resolve) => this.#changes.push(resolve))
  }

  #change() {
    for (const resolve of this.#changes.splice(0)) resolve()
  }

  async #start(job) {
    this.#running.set(job.jid, job)
    const [operation, fields] = await this.#execute(job)
    await this.#report(job, operation, fields)
    this.#running.delete(job.jid)
    this.#change()
  }

  /** Runs the handler. Returns the report. */
  async #execute(job) {
    if (this.#stopping) return ['release', { message: `${this.name} is stopping` }]
    try {
      const value = await this.handlers.get(job.klass)(job)
      return ['complete', value === undefined ? {} : { result: encode(value) }]
    } catch (error) {
      const message = String(error?.message ?? error).slice(0, MESSAGE_CHARS)
      if (error instanceof Fail) return ['fail', { group: error.group, message }]
      if (error instanceof Retry) return ['retry', { in: error.seconds, group: error.group, message }]
      console.warn(`geartrain: job ${job.jid} of klass ${job.klass} is retried:`, error)
      return ['retry', { group: error?.name || 'Error', message }]
    }
  }

  /** Reports until the queue has answered: a report that is repeated is answered as the first one. */
  async #report(job, operation, fields, until = Infinity) {
    for (let pause = 100; !job.signal.aborted && Date.now() < until; pause = Math.min(pause * 2, 5000)) {
      try {
        return await job.ask(operation, fields)
      } catch (error) {
        if (LOCK_GONE.includes(error.code)) return job.lose()
        // The report itself is refused, such as a result that is too large, or its result is no JSON.
        const refused = error instanceof TypeError ? 'not-json' : error instanceof GeartrainError && error.code
        if (refused && refused !== 'unavailable') {
          fields = { group: `report-${refused}`, message: error.message }
          operation = 'fail'
        }
      }
      await sleep(pause)
    }
  }

  /** Extends the locks of running jobs, and notices those that are lost. */
  async #beat() {
    const jobs = [...this.#running.values()]
    if (!jobs.length) return
    const replies = await this.#client.request(jobs.map(({ jid, token }) => ({ heartbeat: { jid, token } })))
    jobs.forEach((job, index) => {
      if (LOCK_GONE.includes(replies[index].error?.code)) job.lose()
    })
  }

  /** Waits for running jobs, and hands back those that take too long. */
  async #finish() {
    const until = Date.now() + this.grace * 1000
    while (this.#running.size && Date.now() < until) {
      await Promise.race([sleep(until - Date.now(), undefined, { ref: false }), this.#nextChange()])
    }
    await Promise.all([...this.#running.values()].map(async (job) => {
      await this.#report(job, 'release', { message: `${this.name} has stopped` }, Date.now() + RELEASE_MS)
      job.lose()
    }))
  }
}
