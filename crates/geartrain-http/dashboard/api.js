// Requests to the API. Addresses are relative to this file, so that they hold under a prefix.

import { setServerTime } from './format.js';
import { parse } from './json.js';

const BASE = new URL('../../', import.meta.url);

/** Where something of this server is, such as `v1/jobs`. A page may be at the prefix itself, without a slash. */
export const url = (path) => BASE.pathname + path;

/** An answer that is an error: a stable code, a sentence, and what to do. */
export class Refused extends Error {
  constructor({ code, message, help }, status) {
    super(message);
    this.code = code;
    this.help = help;
    this.status = status;
  }
}

/** Sends a request and reads the document. */
export async function request(method, path, body) {
  const options = { method, credentials: 'same-origin', headers: {} };
  if (body !== undefined) {
    options.headers['Content-Type'] = 'application/json';
    options.body = typeof body === 'string' ? body : JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(url(path), options);
  } catch {
    throw new Refused({ code: 'offline', message: 'The server does not answer.', help: null }, 0);
  }
  const date = Date.parse(response.headers.get('date') ?? '');
  // The header is cut to the second: half a second is its mean error.
  if (!Number.isNaN(date) && Math.abs(date / 1000 + 0.5 - Date.now() / 1000) > 2) setServerTime(date / 1000 + 0.5);
  const text = await response.text();
  if (response.status === 401) {
    location.assign(url('login'));
    throw new Refused({ code: 'unauthorized', message: 'You are logged out.', help: null }, 401);
  }
  let document = null;
  try {
    document = parse(text);
  } catch {
    throw new Refused(
      { code: 'not-json', message: `The server answered with ${response.status}.`, help: null },
      response.status,
    );
  }
  if (!response.ok)
    throw new Refused(
      document?.error ?? { code: 'error', message: `The server answered with ${response.status}.` },
      response.status,
    );
  return document;
}

/** A document, or null where the server has no such path. */
export async function optional(path) {
  try {
    return await request('GET', path);
  } catch (error) {
    if (error instanceof Refused && [403, 404, 405, 422].includes(error.status)) return null;
    throw error;
  }
}

/** Executes one operation, such as `ask('get', {jid})`. Not by its path, because names may be `.` and `..`, which
 *  browsers remove from addresses. */
export const ask = (name, fields = {}) => request('POST', 'v1/batch', { [name]: fields });

/** Executes several in one request. An operation that was refused is a `Refused`. */
export async function askAll(operations) {
  const documents = await request(
    'POST',
    'v1/batch',
    operations.map(([name, fields]) => ({ [name]: fields ?? {} })),
  );
  return documents.map((document) => (document?.error?.code ? new Refused(document.error, 200) : document));
}

/** What an operation gave, or something else if it was refused. */
export const or = (document, other) => (document instanceof Refused ? other : document);

export const query = (fields) => {
  const pairs = Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const text = pairs
    .flatMap(([key, value]) => [value].flat().map((one) => `${encodeURIComponent(key)}=${encodeURIComponent(one)}`))
    .join('&');
  return text ? `?${text}` : '';
};
