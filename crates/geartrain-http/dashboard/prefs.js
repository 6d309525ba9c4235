// What the reader chose: theme, time zone, pause. Kept in the browser, as far as it allows that.

const DEFAULTS = { theme: 'system', zone: 'local', paused: false, span: '10m' };
const listeners = new Set();

function read() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem('geartrain') ?? '{}') };
  } catch {
    return { ...DEFAULTS };
  }
}

export const prefs = read();

export function setPref(key, value) {
  prefs[key] = value;
  try {
    localStorage.setItem('geartrain', JSON.stringify(prefs));
  } catch {
    // A browser that keeps nothing has the choice until the page is closed.
  }
  apply();
  for (const listener of listeners) listener(key);
}

export function onPref(listener) {
  listeners.add(listener);
}

const dark = matchMedia('(prefers-color-scheme: dark)');
dark.addEventListener('change', apply);

function apply() {
  const isDark = prefs.theme === 'dark' || (prefs.theme === 'system' && dark.matches);
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
}

apply();
