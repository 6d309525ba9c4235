// Icons: strokes on a grid of 16 by 16.

import { h } from './dom.js';

const PATHS = {
  overview: 'M2.5 2.5h4.5v5h-4.5zM9 2.5h4.5v3h-4.5zM9 7.5h4.5v6h-4.5zM2.5 9.5h4.5v4h-4.5z',
  queues: 'M2.5 4h11M2.5 8h11M2.5 12h7',
  jobs: 'M7 2.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9zM10.3 10.3l3.2 3.2',
  failures: 'M8 2.3l6 11.2h-12zM8 6.5v3M8 11.4v.2',
  workers: 'M4 4h8v8h-8zM6 1.8v2.2M10 1.8v2.2M6 12v2.2M10 12v2.2M1.8 6h2.2M1.8 10h2.2M12 6h2.2M12 10h2.2',
  schedules: 'M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 1 0 0-11.6zM8 5v3.2l2.2 1.5',
  tracked: 'M8 2.2l1.8 3.7 4 .6-2.9 2.8.7 4-3.6-1.9-3.6 1.9.7-4-2.9-2.8 4-.6z',
  events: 'M1.8 8.5h2.7l2-5.3 3 9.6 2-4.3h2.7',
  log: 'M3.5 2.2h6.2l2.8 2.8v8.8h-9zM5.7 7h4.6M5.7 9.3h4.6M5.7 11.6h2.8',
  settings: 'M2.5 4.5h5M11 4.5h2.5M9.2 2.9v3.2M2.5 11.5h2.5M8.5 11.5h5M6.8 9.9v3.2',
  audit: 'M8 2l5 1.8v4c0 3-2.1 5.2-5 6.2c-2.9-1-5-3.2-5-6.2v-4zM5.8 8l1.6 1.6 2.8-3',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  close: 'M4 4l8 8M12 4l-8 8',
  plus: 'M8 3v10M3 8h10',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  play: 'M5 3.2l7.2 4.8-7.2 4.8z',
  retry: 'M12.8 8a4.8 4.8 0 1 1-1.5-3.5M12.9 2.4v2.8h-2.8',
  cancel: 'M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 1 0 0-11.6zM4 4l8 8',
  copy: 'M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1',
  download: 'M8 2.5v7.5M4.8 7l3.2 3.2 3.2-3.2M2.8 13.3h10.4',
  sun:
    'M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6z' +
    'M8 1.4v1.4M8 13.2v1.4M1.4 8h1.4M13.2 8h1.4M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1',
  moon: 'M13 9.6a5.6 5.6 0 0 1-6.7-6.9a5.6 5.6 0 1 0 6.7 6.9z',
  system: 'M2 3h12v8h-12zM6 13.5h4M8 11v2.5',
  globe:
    'M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 1 0 0-11.6zM2.2 8h11.6M8 2.2c-3.5 3.6-3.5 8 0 11.6c3.5-3.6 3.5-8 0-11.6z',
  keyboard: 'M1.8 4h12.4v8.2h-12.4zM4 6.6h.2M6.6 6.6h.2M9.2 6.6h.2M11.8 6.6h.2M5 9.6h6',
  tag: 'M2.5 2.5h5l6 6-5 5-6-6zM5.3 5.3v.1',
  up: 'M8 13v-10M4 6.8l4-4 4 4',
  right: 'M6 3.5l4.5 4.5-4.5 4.5',
  check: 'M3 8.5l3.2 3.2 6.8-7',
  bolt: 'M9 1.8l-5.5 7.2h4l-.6 5.2 5.6-7.4h-4z',
  link:
    'M6.8 9.2l2.4-2.4M7.6 4.8l1.5-1.5a2.5 2.5 0 0 1 3.6 3.6l-1.5 1.5' +
    'M8.4 11.2l-1.5 1.5a2.5 2.5 0 0 1-3.6-3.6l1.5-1.5',
  logout: 'M6.5 2.5h-4v11h4M10 5l3 3-3 3M6 8h7',
  trash: 'M2.8 4.3h10.4M6 4.3v-1.8h4v1.8M4.2 4.3l.6 9.2h6.4l.6-9.2',
  dot: 'M8 6.5a1.5 1.5 0 1 0 0 3a1.5 1.5 0 1 0 0-3z',
  hand: 'M8 2.5v11M4.5 10l3.5 3.5 3.5-3.5',
  scheduled: 'M8 2.2a5.8 5.8 0 1 0 0 11.6a5.8 5.8 0 1 0 0-11.6zM8 5v3.2l2.2 1.5',
  depends:
    'M4 3.2a1.6 1.6 0 1 0 0 3.2a1.6 1.6 0 1 0 0-3.2zM12 9.6a1.6 1.6 0 1 0 0 3.2a1.6 1.6 0 1 0 0-3.2zM5.6 5.4l4.8 4.6',
  waiting: 'M4 2.5h8M4 13.5h8M5 2.5c0 3 6 8 6 11M11 2.5c0 3-6 8-6 11',
  running: 'M5 3.2l7.2 4.8-7.2 4.8z',
  stalled: 'M8 2.3l6 11.2h-12zM8 6.5v3M8 11.4v.2',
  complete: 'M3 8.5l3.2 3.2 6.8-7',
  failed: 'M4 4l8 8M12 4l-8 8',
  paused: 'M5.5 3.5v9M10.5 3.5v9',
  recurring: 'M12.8 8a4.8 4.8 0 1 1-1.5-3.5M12.9 2.4v2.8h-2.8',
};

export const icon = (name) =>
  h(
    'svg.icon',
    { viewBox: '0 0 16 16', 'aria-hidden': 'true', focusable: 'false' },
    h('path', { d: PATHS[name] ?? PATHS.dot }),
  );

/** The mark of geartrain: two gears that mesh. */
export const logo = () =>
  h(
    'svg.logo',
    { viewBox: '0 0 32 32', 'aria-hidden': 'true', focusable: 'false' },
    h('path.big', { d: gear(12.5, 18.5, 8.2, 10.6, 9) }),
    h('circle.hole', { cx: 12.5, cy: 18.5, r: 3.4 }),
    h('path.small', { d: gear(24, 8.6, 4.4, 6.3, 6) }),
    h('circle.hole', { cx: 24, cy: 8.6, r: 1.8 }),
  );

function gear(x, y, inner, outer, teeth) {
  const step = Math.PI / teeth;
  const point = (radius, angle) =>
    `${(x + radius * Math.sin(angle)).toFixed(2)} ${(y - radius * Math.cos(angle)).toFixed(2)}`;
  let path = '';
  for (let tooth = 0; tooth < teeth; tooth += 1) {
    const at = tooth * 2 * step;
    const corners = [
      [inner, -0.62],
      [outer, -0.36],
      [outer, 0.36],
      [inner, 0.62],
    ].map(([radius, by]) => point(radius, at + by * step));
    path += `${tooth === 0 ? 'M' : 'L'}${corners.join('L')}`;
  }
  return `${path}Z`;
}
