// A client of a queue: every operation of JSON over RESP, and methods for the frequent ones.

import { randomBytes } from 'node:crypto'
import { Connection, ReplyError, parseUrl } from './resp.js'

const DEFAULT_URL = 'redis://127.0.0.1:7411'
const FUNCTION = 'geartrain_json'
const REPLY_SECONDS = 30
const WAIT_SECONDS = 20 // how long one request waits; a longer wait is several requests

/** The queue refused an operation. `code` is the stable word that HTTP and the command have too. */
export class GeartrainError extends Error {
  constructor(message, code = 'refused', help = null) {
    super(message)
    Object.assign(this, { name: new.target.name, code, help })
  }
}

// One class for each code that programs tell apart; other refusals are a GeartrainError with their code.
const classes = {}
const refusal = (name, code) => (classes[code] = { [name]: class extends GeartrainError {} }[name])
export const NoSuchJob = refusal('NoSuchJob', 'no-such-job')
export const LockLost = refusal('LockLost', 'lock-lost') // the attempt is over: stop working on the job
export const Unfinished = refusal('Unfinished', 'unfinished') // the job has not ended within the wait
export const NoResult = refusal('NoResult', 'no-result') // the job has ended, and its result was not stored
export const QueueFull = refusal('QueueFull', 'queue-full')
export const NoCapableWorker = refusal('NoCapableWorker', 'no-capable-worker')
export const BadArgument = refusal('BadArgument', 'bad-argument')
export const TooLarge = refusal('TooLarge', 'too-large')
export const Unsupported = refusal('Unsupported', 'unsupported') // the backend, such as a bare Redis, lacks it
export const Unavailable = refusal('Unavailable', 'unavailable') // it is not known whether it was done

/** The error of a document such as {"code": "lock-lost", "message": "…", "help": null}. */
export function fromDocument({ code, message, help }) {
  return new (classes[code] ?? GeartrainError)(message, code, help)
}

/** The job that was waited for has failed, or was cancelled. */
export class JobFailed extends Error {
  constructor({ jid, how, group, message }) {
    super(`job ${jid} ${how}${group ? ` in group ${group}: ${message}` : ''}`)
    Object.assign(this, { name: 'JobFailed', jid, how, group, reason: message })
  }
}

/** A payload or result in a document: bytes as they are, other values as JSON, so that they come back unchanged. */
export function encode(value) {
  if (value instanceof Uint8Array) return { $bytes: Buffer.from(value).toString('base64') }
  // The text of a string in a document is stored without its quotes, and might then read as a number.
  return typeof value === 'string' || value == null ? JSON.stringify(value ?? null) : value
}

/** The inverse of `encode`; text that is not JSON is a string. */
export function decode(value) {
  return Object.keys(Object(value)).join() === '$bytes' ? Buffer.from(value.$bytes, 'base64') : value
}

/** A UUID of version 7, in hexadecimal digits. */
export function newJid() {
  const bytes = randomBytes(16)
  bytes.writeUIntBE(Date.now(), 0, 6)
  bytes[6] = 0x70 | (bytes[6] & 0x0f)
  bytes[8] = 0x80 | (bytes[8] & 0x3f)
  return bytes.toString('hex')
}

/** A queue: a geartrain server, or a Redis with the library that `geartrain lua --json` prints. */
export class Client {
  #address
  #connection
  #idle = []

  constructor(url = process.env.GEARTRAIN_URL ?? DEFAULT_URL) {
    this.#address = parseUrl(url)
    this.#connection = new Connection(this.#address)
  }

  close() {
    for (const connection of [this.#connection, ...this.#idle.splice(0)]) connection.close()
  }

  /** Sends a document, one operation or a list of them, and returns the document of the reply. */
  async request(document, wait = 0) {
    const words = ['FCALL', FUNCTION, '1', this.#address.namespace, JSON.stringify(document)]
    try {
      return JSON.parse(wait ? await this.#block(words, wait) : await this.#connection.call(words))
    } catch (error) {
      if (!(error instanceof ReplyError)) throw error
      const help = 'load it: geartrain lua --json | redis-cli -x FUNCTION LOAD REPLACE'
      throw error.message.includes('Function not found')
        ? new Unavailable('this Redis lacks the function geartrain_json', 'unavailable', help)
        : new Unavailable(error.message, 'unavailable')
    }
  }

  /** A command that waits has a connection to itself. */
  async #block(words, seconds) {
    const connection = this.#idle.pop() ?? new Connection(this.#address)
    const reply = await connection.call(words, (REPLY_SECONDS + seconds) * 1000)
    this.#idle.push(connection)
    return reply
  }

  /** Executes one operation, such as ask('queues'); a refusal is thrown. With `wait` seconds it waits. */
  async ask(operation, fields = {}, wait = 0) {
    const until = Date.now() + wait * 1000
    for (;;) {
      const left = Math.max((until - Date.now()) / 1000, 0)
      const step = Math.min(left, WAIT_SECONDS)
      const reply = await this.request({ [operation]: step ? { ...fields, wait: step } : fields }, step)
      if (reply.error) {
        if (reply.error.code !== 'unfinished' || left <= step) throw fromDocument(reply.error)
      } else if (reply.wait && 'blpop' in reply.wait) {
        // A script cannot block: the client waits, and asks again.
        const seconds = Math.min(reply.wait.seconds, Math.max(left, 0.01))
        await this.#block(['BLPOP', reply.wait.blpop, seconds.toFixed(3)], seconds)
      } else if (!Array.isArray(reply) || reply.length || left <= step) {
        return reply
      }
    }
  }

  /** Puts a job and returns its jid. Options are the fields of docs/formats/json.md. */
  async put(queue, klass, payload = null, options = {}) {
    const fields = { queue, klass, payload: encode(payload), jid: newJid(), ...options }
    try {
      return (await this.ask('put', fields)).jid
    } catch (error) {
      if (error.name !== 'ConnectionError') throw error
      // Safe: a put of a jid that exists changes nothing.
      return (await this.ask('put', fields)).jid
    }
  }

  /** The job as a document, with its history. */
  get(jid) {
    return this.ask('get', { jid })
  }

  /** The reasons why the job is not running; each has a `reason`. */
  async why(jid) {
    return (await this.ask('why', { jid })).reasons
  }

  /** Cancels jobs and returns how many. */
  async cancel(jids, because) {
    return (await this.ask('cancel', { jids: [jids].flat(), because })).cancelled
  }

  /** The result of a job that was put with `keep_result`; `wait` is how many seconds to wait for its end. */
  async result(jid, wait = 0) {
    const { how, result, code, group, message } = await this.ask('result', { jid }, wait)
    return { jid, how, value: decode(result), code, group, message }
  }

  /** Waits for a job and returns its value. Throws JobFailed, or Unfinished when the time is over. */
  async wait(jid, seconds) {
    const result = await this.result(jid, seconds)
    if (result.how !== 'completed' || result.code) throw new JobFailed(result)
    return result.value
  }

  /** The events after a position, until `wait` seconds pass without one. Not on a bare Redis. */
  async *events(after, wait = 3600) {
    for (;;) {
      const found = await this.ask('events', { after: String(after) }, wait)
      if (!found.length) return
      for (const event of found) {
        yield event
        after = event.position
      }
    }
  }
}
