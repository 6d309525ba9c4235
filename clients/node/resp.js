// Connections in the Redis protocol.

import net from 'node:net'
import tls from 'node:tls'

const CONNECT_MS = 10_000
const REPLY_MS = 30_000

/** An error of the server that is no document, such as a wrong password. */
export class ReplyError extends Error {}

/** Parses redis://, rediss:// or unix:// with a user and password, and a `prefix` (the namespace). */
export function parseUrl(text) {
  const url = new URL(text)
  const scheme = url.protocol.slice(0, -1)
  if (!['redis', 'rediss', 'valkey', 'valkeys', 'unix'].includes(scheme)) {
    throw new TypeError(`${text} is not a URL like redis://127.0.0.1:7411`)
  }
  const path = decodeURIComponent(url.pathname)
  return {
    ...(scheme === 'unix' ? { path } : { host: url.hostname.replace(/^\[|\]$/g, ''), port: Number(url.port) || 6379 }),
    tls: scheme === 'rediss' || scheme === 'valkeys',
    user: decodeURIComponent(url.username), password: decodeURIComponent(url.password),
    database: scheme === 'unix' ? '' : path.replaceAll('/', ''),
    namespace: url.searchParams.get('prefix') ?? '',
  }
}

/** Reads replies: returns [value, position behind it], or nothing if it is not whole yet. */
function parse(buffer, at) {
  const end = buffer.indexOf('\r\n', at)
  if (end < 0) return undefined
  const kind = buffer[at]
  const line = buffer.toString('utf8', at + 1, end)
  switch (String.fromCharCode(kind)) {
    case '+': return [line, end + 2]
    case '-': return [new ReplyError(line), end + 2]
    case ':': return [Number(line), end + 2]
    case '$': {
      if (line === '-1') return [null, end + 2]
      const last = end + 2 + Number(line)
      return buffer.length < last + 2 ? undefined : [buffer.toString('utf8', end + 2, last), last + 2]
    }
    case '*': {
      if (line === '-1') return [null, end + 2]
      const items = []
      let next = end + 2
      for (let index = 0; index < Number(line); index++) {
        const item = parse(buffer, next)
        if (!item) return undefined
        items.push(item[0])
        next = item[1]
      }
      return [items, next]
    }
    default: throw new Error(`this is not the Redis protocol: ${JSON.stringify(line.slice(0, 40))}`)
  }
}

/** One connection; requests are pipelined. A failure fails all requests, and the next one connects again. */
export class Connection {
  #address
  #socket
  #waiting = []
  #chunks = []

  constructor(address) {
    this.#address = address
  }

  /** Sends a command; `ms` is how long its reply may take. */
  call(words, ms = REPLY_MS) {
    if (!this.#socket) this.#connect()
    return this.#send(words, ms)
  }

  close() {
    this.#socket?.destroy()
  }

  #send(words, ms) {
    const socket = this.#socket
    const parts = [`*${words.length}\r\n`]
    for (const word of words) parts.push(`$${Buffer.byteLength(word)}\r\n${word}\r\n`)
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => socket.destroy(new Error(`no reply within ${ms / 1000} seconds`)), ms)
      this.#waiting.push({ resolve, reject, timer })
      socket.write(parts.join(''))
    })
  }

  #connect() {
    const { host, port, path, user, password, database } = this.#address
    const target = path && !host ? { path } : { host, port }
    const socket = this.#socket = this.#address.tls ? tls.connect({ ...target, servername: host }) : net.connect(target)
    this.#chunks = []
    socket.setNoDelay(true)
    socket.setTimeout(CONNECT_MS, () => socket.destroy(new Error('cannot connect in time')))
    socket.once('connect', () => socket.setTimeout(0))
    socket.on('data', (data) => this.#receive(socket, data))
    let cause
    socket.on('error', (error) => { cause = error })
    socket.on('close', () => {
      if (this.#socket === socket) this.#socket = undefined
      const error = new Error(cause?.message || 'the server has closed the connection', { cause })
      error.name = 'ConnectionError'
      for (const { reject, timer } of this.#waiting.splice(0)) {
        clearTimeout(timer)
        reject(error)
      }
    })
    // A refused login refuses the next command, too.
    if (password) this.#send(user ? ['AUTH', user, password] : ['AUTH', password], CONNECT_MS).catch(() => {})
    if (database) this.#send(['SELECT', database], CONNECT_MS).catch(() => {})
  }

  #receive(socket, data) {
    this.#chunks.push(data)
    let buffer = this.#chunks.length === 1 ? data : Buffer.concat(this.#chunks)
    try {
      for (let found; buffer.length && (found = parse(buffer, 0)); buffer = buffer.subarray(found[1])) {
        const { resolve, reject, timer } = this.#waiting.shift()
        clearTimeout(timer)
        if (found[0] instanceof ReplyError) reject(found[0])
        else resolve(found[0])
      }
    } catch (error) {
      socket.destroy(error)
    }
    this.#chunks = buffer.length ? [buffer] : []
  }
}
