// The role of the reader. The server checks every request again.

import { optional } from './api.js';

const RANKS = ['viewer', 'operator', 'admin'];

export const session = { name: null, role: 'viewer', login: false, read_only: false };

export async function loadSession() {
  // A router that is mounted without keys and without this path lets every caller act as admin.
  Object.assign(session, (await optional('v1/whoami')) ?? { role: 'admin' });
}

/** Whether the role suffices. On a read-only server nothing can be changed. */
export const can = (role) =>
  RANKS.indexOf(session.role) >= RANKS.indexOf(role) && !(session.read_only && role !== 'viewer');

export const isAdmin = () => session.role === 'admin';
