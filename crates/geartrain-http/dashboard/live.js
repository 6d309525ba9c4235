// Live updates: one event stream for the page that is open, and refreshes at most once a second. Without a stream the
// page polls. A hidden page has neither.

import { query, url } from './api.js';
import { prefs } from './prefs.js';

/** The shortest time between two refreshes. */
const REFRESH_MS = 1000;
/** How often a page with a stream is refreshed anyway, for what has no events: ages and rates. */
const POLL_STREAM_MS = 5000;
const POLL_MS = 2000;
/** A queue with more events in a second is polled: the browser would do nothing but read them. */
const EVENTS_MAX = 400;
/** How long until the stream is tried again after that. */
const STORM_MS = 15000;

/** `onState` is told: live, polling, paused or offline. */
export class Live {
  #page = null;
  #source = null;
  #dirty = false;
  #running = false;
  #last = 0;
  #events = 0;
  #stormUntil = 0;
  #onState;
  #isOffline = false;

  constructor(onState) {
    this.#onState = onState;
    setInterval(() => this.#tick(), 250);
    document.addEventListener('visibilitychange', () => this.update());
  }

  /** Serves another page: `{filter, refresh, concerns, onEvent}`, or none. */
  open(page) {
    this.#page = page;
    this.#last = performance.now();
    this.#dirty = false;
    this.#close();
    this.update();
  }

  /** Opens or closes the stream, after the reader paused or hid the page. */
  update() {
    if (prefs.paused || document.hidden || !this.#page) this.#close();
    else {
      if (!this.#source && performance.now() > this.#stormUntil && this.#page.filter) this.#connect();
      if (!this.#source) this.#dirty = true;
    }
    this.#report();
  }

  #connect() {
    const page = this.#page;
    const source = new EventSource(url(`v1/events${query(page.filter)}`));
    this.#source = source;
    this.#events = 0;
    source.onopen = () => {
      this.#dirty = true;
      this.#report();
    };
    source.onmessage = (message) => {
      this.#events += 1;
      const event = JSON.parse(message.data);
      page.onEvent?.(event);
      if (!page.concerns || page.concerns(event)) this.#dirty = true;
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        this.#close();
        this.#stormUntil = performance.now() + STORM_MS;
      }
      this.#report();
    };
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }

  #tick() {
    const now = performance.now();
    if (!this.#page || prefs.paused || document.hidden) return;
    if (this.#events > EVENTS_MAX / 4 && this.#source && !this.#page.onEvent) {
      this.#close();
      this.#stormUntil = now + STORM_MS;
      this.#report();
    }
    this.#events = 0;
    if (!this.#source && this.#page.filter && now > this.#stormUntil) this.#connect();
    const poll = this.#isStreaming() ? POLL_STREAM_MS : POLL_MS;
    const waited = now - this.#last;
    if (!this.#running && ((this.#dirty && waited >= REFRESH_MS) || waited >= poll)) this.#refresh();
  }

  async #refresh() {
    this.#running = true;
    this.#dirty = false;
    this.#last = performance.now();
    try {
      await this.#page.refresh();
      this.#isOffline = false;
    } catch (error) {
      this.#isOffline = error.code === 'offline' || error.code === 'unavailable';
    } finally {
      // A server that is slow to answer is asked less often.
      const took = performance.now() - this.#last;
      this.#last += took * 2;
      this.#running = false;
      this.#report();
    }
  }

  #isStreaming() {
    return this.#source?.readyState === EventSource.OPEN;
  }

  #report() {
    const state = prefs.paused ? 'paused' : this.#isOffline ? 'offline' : this.#isStreaming() ? 'live' : 'polling';
    this.#onState(state);
  }
}
