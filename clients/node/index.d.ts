/** Client and worker for geartrain, a job queue. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
/** A payload or result: JSON, or bytes. */
export type Value = Json | Uint8Array
export type Fields = { [field: string]: unknown }

export interface PutOptions {
  priority?: number
  in?: number | string
  at?: number | string
  tags?: string[]
  depends?: string[]
  retries?: number
  jid?: string
  replace?: boolean
  unique?: string
  timeout?: number | string
  expires?: number | string
  backoff?: string
  crashes?: number
  roll_call?: boolean
  keep_result?: boolean | number | string
  on_dependency_failure?: 'wait' | 'fail' | 'skip' | 'run'
  traceparent?: string
}

export interface Result<T = any> {
  jid: string
  how: 'completed' | 'failed' | 'canceled' | 'ended'
  value: T
  code: number | null
  group: string | null
  message: string | null
}

export interface Reason {
  reason: string
  [key: string]: unknown
}

/** The queue refused an operation. `code` is the stable word that HTTP and the command have too. */
export class GeartrainError extends Error {
  constructor(message: string, code?: string, help?: string | null)
  readonly code: string
  readonly help: string | null
}
export class NoSuchJob extends GeartrainError {}
export class LockLost extends GeartrainError {}
export class Unfinished extends GeartrainError {}
export class NoResult extends GeartrainError {}
export class QueueFull extends GeartrainError {}
export class NoCapableWorker extends GeartrainError {}
export class BadArgument extends GeartrainError {}
export class TooLarge extends GeartrainError {}
export class Unsupported extends GeartrainError {}
export class Unavailable extends GeartrainError {}

/** The job that was waited for has failed, or was cancelled. */
export class JobFailed extends Error {
  readonly jid: string
  readonly how: string
  readonly group: string | null
  readonly reason: string | null
}

export function fromDocument(error: { code: string; message: string; help: string | null }): GeartrainError
export function encode(value: Value | undefined): Json
export function decode(value: Json): any
export function newJid(): string

/** A queue: a geartrain server, or a Redis with the library that `geartrain lua --json` prints. */
export class Client {
  /** By default GEARTRAIN_URL, or redis://127.0.0.1:7411. */
  constructor(url?: string)
  close(): void
  /** Sends a document, one operation or a list of them, and returns the document of the reply. */
  request(document: unknown, wait?: number): Promise<any>
  /** Executes one operation; a refusal is thrown. With `wait` seconds it waits. */
  ask(operation: string, fields?: Fields, wait?: number): Promise<any>
  put(queue: string, klass: string, payload?: Value, options?: PutOptions): Promise<string>
  get(jid: string): Promise<Fields>
  why(jid: string): Promise<Reason[]>
  cancel(jids: string | string[], because?: string): Promise<number>
  result<T = any>(jid: string, wait?: number): Promise<Result<T>>
  wait<T = any>(jid: string, seconds: number): Promise<T>
  events(after: number | string, wait?: number): AsyncIterable<Fields>
}

/** Thrown by a handler: the job is retried. Uses up a retry. */
export class Retry extends Error {
  constructor(message?: string, options?: { seconds?: number | null; group?: string | null })
}

/** Thrown by a handler: the job fails now, into a group of failures. */
export class Fail extends Error {
  constructor(group: string, message: string)
}

/** A job that this worker holds. */
export class Job<T = any> {
  readonly jid: string
  readonly queue: string
  readonly klass: string
  readonly remaining: number
  readonly token: string
  readonly payload: T
  readonly document: Fields
  /** Aborted when the lock is lost, the job is cancelled, or the worker hands it back. */
  readonly signal: AbortSignal
  ask(operation: string, fields?: Fields): Promise<any>
  progress(part: number, whole: number, text?: string | null): Promise<void>
}

export interface WorkerOptions {
  url?: string
  name?: string
  /** How many jobs at a time. */
  concurrency?: number
  /** Seconds between heartbeats. */
  heartbeat?: number
  /** Seconds that running jobs have to finish after SIGTERM. */
  grace?: number
}

/** Runs jobs of queues with handlers by klass. */
export class Worker {
  constructor(queues: string[], options?: WorkerOptions)
  on<T = any>(klass: string, handler: (job: Job<T>) => unknown): this
  stop(): void
  run(options?: { drain?: boolean }): Promise<void>
}
