// Numbers, durations and times as text. Every time has a relative form and an absolute one.

import { h } from './dom.js';
import { prefs } from './prefs.js';

const whole = new Intl.NumberFormat();
const oneDigit = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(undefined, { notation: 'compact', maximumFractionDigits: 1 });

/** The difference between the server's clock and that of this machine, in seconds. */
let offset = 0;

export function setServerTime(seconds) {
  offset = seconds - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + offset;

export const count = (value) => (value === null || value === undefined ? '–' : whole.format(value));
export const compact = (value) =>
  value === null || value === undefined ? '–' : value < 10000 ? whole.format(value) : short.format(value);
export const decimal = (value) => (value === null || value === undefined ? '–' : oneDigit.format(value));
export const plural = (value, one, many = `${one}s`) => `${whole.format(value)} ${value === 1 ? one : many}`;

export function bytes(value) {
  if (value === null || value === undefined) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) ((value /= 1024), (unit += 1));
  return `${oneDigit.format(value)} ${units[unit]}`;
}

/** A duration in its two largest units: 1m 12s. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–';
  const sign = seconds < 0 ? '-' : '';
  let rest = Math.abs(seconds);
  if (rest < 0.0005) return '0s';
  if (rest < 1) return `${sign}${Math.round(rest * 1000)}ms`;
  if (rest < 10) return `${sign}${oneDigit.format(rest)}s`;
  rest = Math.round(rest);
  const parts = [];
  for (const [unit, size] of [
    ['d', 86400],
    ['h', 3600],
    ['m', 60],
    ['s', 1],
  ]) {
    const value = Math.floor(rest / size);
    rest -= value * size;
    if (value > 0 || parts.length > 0) parts.push(value > 0 ? `${value}${unit}` : null);
    if (parts.length === 2) break;
  }
  return sign + parts.filter(Boolean).join(' ');
}

/** Like a duration, for text that changes every second: whole seconds. */
export function relative(at) {
  const seconds = at - now();
  const size = Math.abs(seconds);
  if (size < 1) return 'now';
  const text = duration(
    size < 60 ? Math.floor(size) || 1 : size < 3600 ? Math.floor(size) : Math.floor(size / 60) * 60,
  );
  return seconds > 0 ? `in ${text}` : `${text} ago`;
}

const formats = new Map();

function formatOf(options) {
  const key = JSON.stringify(options) + prefs.zone;
  if (!formats.has(key)) {
    formats.set(
      key,
      new Intl.DateTimeFormat(undefined, prefs.zone === 'utc' ? { ...options, timeZone: 'UTC' } : options),
    );
  }
  return formats.get(key);
}

export function absolute(at) {
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return String(at);
  if (prefs.zone === 'utc') return `${date.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
  const parts = {
    year: 'numeric',
    month: 'short',
    day: 'numeric',
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
  };
  return formatOf({ ...parts, timeZoneName: 'short' }).format(date);
}

/** The time of day, for axes and lists of events. */
export function clock(at, withSeconds = true) {
  const parts = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' };
  return formatOf(withSeconds ? { ...parts, second: '2-digit' } : parts).format(new Date(at * 1000));
}

/** A time as an element: relative, and absolute in its title. It is kept up to date by `tick`. */
export function time(at, { both = false } = {}) {
  if (at === null || at === undefined) return h('span.muted', null, '–');
  const iso = new Date(at * 1000);
  const attributes = {
    'data-at': at,
    title: absolute(at),
    datetime: Number.isNaN(iso.getTime()) ? null : iso.toISOString(),
  };
  const element = h('time', attributes, relative(at));
  return both ? h('span.both', null, element, h('span.muted', null, absolute(at))) : element;
}

/** Since when something lasts, as a duration that grows. */
export function since(at) {
  if (at === null || at === undefined) return h('span.muted', null, '–');
  return h('time', { 'data-since': at, title: absolute(at) }, duration(Math.max(0, Math.floor(now() - at))));
}

export function tick() {
  for (const element of document.querySelectorAll('time[data-at]'))
    setText(element, relative(Number(element.dataset.at)));
  for (const element of document.querySelectorAll('time[data-since]')) {
    setText(element, duration(Math.max(0, Math.floor(now() - Number(element.dataset.since)))));
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A word for a shell, quoted if it needs that. */
export const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
