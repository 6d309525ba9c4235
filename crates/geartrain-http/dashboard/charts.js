// Charts, drawn as SVG: a line for each series, sparklines, histograms. What was not sampled leaves a gap.

import { h } from './dom.js';
import { clock, compact, count, decimal, duration } from './format.js';

/** Runs of numbers between gaps, as [[index, value], …]. */
function runs(values) {
  const found = [];
  let run = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      if (run.length) found.push(run);
      run = [];
    } else run.push([index, value]);
  });
  if (run.length) found.push(run);
  return found;
}

/** How many values at the beginning have no sample, of a server that started after them. Some are kept, so that the
 *  first minutes do not look like a day. */
function unsampled(lists, kept) {
  const length = Math.max(...lists.map((values) => values.length));
  const first = Math.min(
    ...lists
      .map((values) => values.findIndex((value) => value !== null && value !== undefined))
      .filter((at) => at >= 0),
    length,
  );
  return Math.max(0, Math.min(first, length - kept));
}

/** The means of as many neighbours as it takes to have about so many values. The last group is complete, so that it
 *  does not jump with each sample. */
function means(values, wanted) {
  const size = Math.max(1, Math.round(values.length / wanted));
  const groups = [];
  for (let end = values.length; end > 0; end -= size) groups.unshift(values.slice(Math.max(0, end - size), end));
  return { size, values: groups.map(meanOf) };
}

function meanOf(values) {
  const sampled = values.filter((value) => value !== null && value !== undefined);
  return sampled.length === 0 ? null : sampled.reduce((sum, value) => sum + value, 0) / sampled.length;
}

const pathOf = (points) =>
  points.map(([x, y], index) => `${index === 0 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');

/** A small line without axes. */
export function sparkline(all, label, name = '') {
  const [width, height] = [100, 24];
  const { values } = means(all.slice(unsampled([all], 30)), 60);
  const max = Math.max(1e-9, ...values.filter((value) => value !== null && value !== undefined));
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * width : width);
  const y = (value) => height - 2 - (value / max) * (height - 4);
  const parts = runs(values).map((run) => run.map(([index, value]) => [x(index), y(value)]));
  return h(
    'svg.spark',
    {
      class: name,
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: 'none',
      ...(label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': 'true' }),
    },
    parts.map((points) =>
      h('path.area', {
        d: `${pathOf(points)}L${points.at(-1)[0].toFixed(1)} ${height}L${points[0][0].toFixed(1)} ${height}Z`,
      }),
    ),
    parts.map((points) =>
      h('path.line', { d: points.length > 1 ? pathOf(points) : `M${points[0][0] - 1} ${points[0][1]}h2` }),
    ),
  );
}

/** A round number at or above a value. */
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((factor) => factor * power).find((step) => step >= value - 1e-9);
}

/** The width of a card's content, in pixels. */
const contentWidth = () =>
  Math.round(
    Math.min(
      1472,
      Math.max(240, (document.getElementById('main')?.clientWidth ?? 900) - (innerWidth < 560 ? 50 : 74)),
    ),
  );

/** Lines over time. `series` is [{name, label, values, area}]; `until` is the time of the last value, `step` seconds
 *  lie between two. */
export function timeChart({ label, series: all, step: sampled, until, unit = '', height = 210 }) {
  // A unit is a pixel, so that text keeps its size on a phone.
  const width = contentWidth();
  const begin = unsampled(
    all.map((one) => one.values),
    60,
  );
  const grouped = all.map((one) => means(one.values.slice(begin), width / 10));
  const series = all.map((one, index) => ({ ...one, values: grouped[index].values }));
  const step = sampled * grouped[0].size;
  const [left, bottom, top] = [40, 22, 8];
  const length = Math.max(...series.map((one) => one.values.length), 2);
  const known = series.flatMap((one) => one.values).filter((value) => value !== null);
  const max = ceiling(Math.max(0.1, ...known) * 1.02);
  const x = (index) => left + (index / (length - 1)) * (width - left - 8);
  const y = (value) => height - bottom - (value / max) * (height - bottom - top);
  const timeAt = (index) => until - (length - 1 - index) * step;
  const lines = [0, 0.5, 1].map((part) => part * max);
  const tickCount = Math.max(2, Math.min(7, Math.floor(width / 130)));
  const ticks = Array.from({ length: tickCount }, (_, tick) => Math.round((tick / (tickCount - 1)) * (length - 1)));
  const span = step * length;
  const draw = (one) =>
    runs(one.values).map((run) => {
      const points = run.map(([index, value]) => [x(index), y(value)]);
      const path = points.length > 1 ? pathOf(points) : `M${points[0][0] - 1.5} ${points[0][1]}h3`;
      return [
        one.area &&
          points.length > 1 &&
          h('path.area', {
            d: `${path}L${points.at(-1)[0].toFixed(1)} ${y(0)}L${points[0][0].toFixed(1)} ${y(0)}Z`,
            class: `s-${one.name}`,
          }),
        h('path.line', { d: path, class: `s-${one.name}` }),
      ];
    });
  const said = (one) => `${one.label}: ${decimal(one.values.findLast((value) => value !== null) ?? null)}${unit}`;
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const index = Math.round(((at - left) / (width - left - 8)) * (length - 1));
    if (index < 0 || index >= length) return hideTip();
    const rows = series.map((one) => [one, one.values[index]]);
    showTip(
      event,
      h(
        'div',
        null,
        h('strong', null, clock(timeAt(index), span < 7200)),
        rows.map(([one, value]) =>
          h(
            'div.tip-row',
            null,
            h('i', { class: `dot s-${one.name}` }),
            h('span', null, one.label),
            h('b', null, value === null || value === undefined ? 'not sampled' : `${decimal(value)}${unit}`),
          ),
        ),
      ),
    );
  };
  return h(
    'div.chart',
    null,
    h(
      'svg',
      {
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${label}. ${series.map(said).join(', ')}`,
        onpointermove: move,
        onpointerleave: hideTip,
      },
      lines.map((value, index) =>
        h(
          'g',
          { key: `y${index}` },
          h('line.grid', { x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
          h('text.axis', { x: left - 8, y: y(value) + 3.5, 'text-anchor': 'end' }, compactTick(value)),
        ),
      ),
      ticks.map((index, at) =>
        h(
          'text.axis',
          {
            key: `x${at}`,
            x: x(index),
            y: height - 5,
            'text-anchor': at === 0 ? 'start' : at === tickCount - 1 ? 'end' : 'middle',
          },
          clock(timeAt(index), span < 1800),
        ),
      ),
      series.filter((one) => one.area).map(draw),
      series.filter((one) => !one.area).map(draw),
    ),
    h(
      'div.legend',
      null,
      series.map((one) => h('span', { key: one.name }, h('i', { class: `dot s-${one.name}` }), one.label)),
    ),
  );
}

const compactTick = (value) => (value >= 10 || Number.isInteger(value) ? compact(value) : decimal(value));

let tip = null;

function showTip(event, content) {
  if (!tip) {
    tip = h('div.tip', { 'aria-hidden': 'true' });
    document.body.append(tip);
  }
  tip.replaceChildren(content);
  tip.hidden = false;
  const { offsetWidth, offsetHeight } = tip;
  // A position is a property, not a style attribute, which the security policy would refuse.
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, event.clientY - offsetHeight - 12)}px`;
}

export function hideTip() {
  if (tip) tip.hidden = true;
}

/** The statistics of a day count seconds 0 to 59, minutes 1 to 59, hours 1 to 23 and days 1 to 6. */
const BOUNDS = [
  ...Array(60).keys(),
  ...Array.from({ length: 59 }, (_, at) => (at + 1) * 60),
  ...Array.from({ length: 23 }, (_, at) => (at + 1) * 3600),
  ...Array.from({ length: 6 }, (_, at) => (at + 1) * 86400),
];
const BINS = [0, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86400];

function binned(histogram) {
  const bins = BINS.map((from, index) => ({ from, to: BINS[index + 1] ?? Infinity, count: 0 }));
  histogram.forEach((number, index) => {
    if (number > 0) bins.findLast((bin) => BOUNDS[index] >= bin.from).count += number;
  });
  return bins;
}

/** The time below which a part of the counted jobs lies, as far as the histogram tells: the end of its bucket. */
export function percentile(histogram, part) {
  const total = histogram.reduce((sum, value) => sum + value, 0);
  if (total === 0) return null;
  let sum = 0;
  const index = histogram.findIndex((value) => (sum += value) >= part * total);
  return BOUNDS[index + 1] ?? BOUNDS[index];
}

const binLabel = (bin) => (bin.from === 0 ? '< 1s' : duration(bin.from));

export function histogram({ label, values, name }) {
  const bins = binned(values);
  const total = bins.reduce((sum, bin) => sum + bin.count, 0);
  const last = Math.max(7, bins.findLastIndex((bin) => bin.count > 0) + 1);
  const shown = bins.slice(0, last + 1);
  const max = Math.max(1, ...shown.map((bin) => bin.count));
  // Two stand side by side where there is room.
  const [width, height, bottom, top] = [innerWidth < 860 ? contentWidth() : contentWidth() / 2 - 20, 150, 20, 12];
  const step = width / shown.length;
  const wide = Math.min(step - 4, 56);
  const said = shown
    .filter((bin) => bin.count > 0)
    .map((bin) => `from ${binLabel(bin)}: ${bin.count}`)
    .join(', ');
  return h(
    'svg.histogram',
    {
      class: name,
      viewBox: `0 0 ${width} ${height}`,
      role: 'img',
      'aria-label': `${label}: ${said || 'nothing yet'}`,
      onpointerleave: hideTip,
    },
    h('line.grid', { x1: 0, x2: width, y1: height - bottom, y2: height - bottom }),
    shown.map((bin, index) => {
      const tall = bin.count === 0 ? 0 : Math.max(2, (bin.count / max) * (height - bottom - top));
      const text = `${binLabel(bin)}${bin.to === Infinity ? ' and more' : ` to ${duration(bin.to)}`}`;
      const point = (event) =>
        showTip(
          event,
          h(
            'div',
            null,
            h('strong', null, text),
            h(
              'div.tip-row',
              null,
              h('span', null, 'Jobs'),
              h('b', null, `${count(bin.count)} (${decimal(total ? (bin.count / total) * 100 : 0)} %)`),
            ),
          ),
        );
      return h(
        'g',
        { key: index, onpointermove: point },
        h('rect.catch', { x: index * step, y: 0, width: step, height: height - bottom }),
        h('rect.column', {
          x: (index + 0.5) * step - wide / 2,
          y: height - bottom - tall,
          width: wide,
          height: tall,
          rx: 2,
        }),
        h('text.axis', { x: index * step + step / 2, y: height - 5, 'text-anchor': 'middle' }, binLabel(bin)),
      );
    }),
  );
}
