// Chromium as the scripts here use it: it starts headless, each wait is bounded, and whatever the pages report as an
// error (exceptions, messages of the console, violations of the security policy) fails the script.

import assert from 'node:assert/strict';
import { mkdir, readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';

const installed = process.env.BROWSER_PEER ?? fail('BROWSER_PEER is not set: it is the directory that `setup` prints');
const packages = createRequire(join(installed, 'package.json'));
const { chromium } = packages('playwright-core');
const axe = packages.resolve('axe-core/axe.min.js');

/** How long a page may take to become what a script waits for. */
const WAIT_MS = 30_000;
/** How long a script may take. */
const SCRIPT_MS = 8 * 60_000;

const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync',
];

function fail(message) {
  process.stderr.write(`${message}\n`);
  process.exit(1);
}

/** The first argument: where the dashboard is, with a slash at its end. */
export const home = process.argv[2] ?? fail('usage: node SCRIPT URL');

/** What is written for people to look at: the directory `screenshots` beside the one with the packages. */
export const screenshots = join(installed, '..', 'screenshots');

const reads = createInterface({ input: process.stdin });
const answers = [];
const asked = [];
reads.on('line', (line) => (asked.length ? asked.shift()(line) : answers.push(line)));
// The test has ended.
reads.on('close', () => process.exit(1));

/** Has the test do something to the server: prints a word and waits for a line. */
export async function ask(word) {
  process.stdout.write(`${word}\n`);
  return answers.length ? answers.shift() : new Promise((resolve) => asked.push(resolve));
}

/** Errors that a page reported, and those that a step is about: `expecting` holds patterns of those. */
const faults = [];
let expecting = [];

/** Does a step in which some errors are expected, such as those of requests to a server that is away. */
export async function expectFaults(patterns, step) {
  expecting = patterns;
  await step();
  expecting = [];
}

function report(page, text) {
  if (!expecting.some((pattern) => pattern.test(text))) faults.push(`${page.url()}: ${text}`);
}

function watch(page) {
  page.setDefaultTimeout(WAIT_MS);
  page.on('pageerror', (error) => report(page, `exception: ${error.stack ?? error}`));
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) report(page, `${message.text()} (${message.location().url})`);
  });
  page.on('dialog', (dialog) => report(page, `a dialog of the browser: ${dialog.message()}`));
  page.on('crash', () => report(page, 'the page crashed'));
}

/** Runs a script: `steps` gets `{open}`, which opens a page in a session of its own. */
export async function run(steps) {
  const limit = setTimeout(() => fail(`the script took longer than ${SCRIPT_MS / 60_000} minutes`), SCRIPT_MS);
  const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS }).catch((error) =>
    fail(`/usr/bin/chromium does not start: ${error.message}\nOn Debian and Ubuntu: apt-get install chromium`));
  const pages = [];
  const open = async ({ theme = 'light', width = 1280, height = 860, url = home, ...options } = {}) => {
    const viewport = { width, height };
    const context = await browser.newContext({ viewport, colorScheme: theme, reducedMotion: 'reduce', locale: 'en-GB', timezoneId: 'UTC', ...options });
    await context.addInitScript(() => {
      document.addEventListener('securitypolicyviolation', (event) =>
        console.error(`the security policy refused ${event.blockedURI} by ${event.effectiveDirective}`));
    });
    const page = await context.newPage();
    watch(page);
    pages.push(page);
    await page.goto(url);
    return page;
  };
  try {
    await steps({ open });
    assert.deepEqual(faults, [], 'no page reports an error');
  } catch (error) {
    process.stderr.write(`${error.stack ?? error}\n`);
    for (const fault of faults) process.stderr.write(`the page reported: ${fault}\n`);
    await mkdir(screenshots, { recursive: true });
    for (const [index, page] of pages.entries()) {
      const path = join(screenshots, `failed-${index}.png`);
      await page.screenshot({ path }).then(() => process.stderr.write(`see ${path} of ${page.url()}\n`), () => {});
    }
    process.exitCode = 1;
  }
  await browser.close();
  clearTimeout(limit);
  process.exit(process.exitCode);
}

/** Waits until something holds of what a function gives: a condition of the API, for example. */
export async function until(what, get, holds, limit = WAIT_MS) {
  const end = Date.now() + limit;
  for (;;) {
    const value = await get();
    if (holds(value)) return value;
    assert.ok(Date.now() < end, `in vain: ${what}; last: ${JSON.stringify(value)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Sends an operation of the API with the session of a page, as a request of the same origin: status and document. */
export async function send(page, operation) {
  const reply = await page.request.post(new URL('v1/batch', home).href, { data: operation, headers: { Origin: new URL(home).origin } });
  return [reply.status(), await reply.json()];
}

/** The document of an operation that succeeds. */
export async function operate(page, operation) {
  const [status, document] = await send(page, operation);
  assert.equal(status, 200, `${JSON.stringify(operation)}: ${JSON.stringify(document)}`);
  return document;
}

/** Opens a page of the dashboard by its route, and waits until its data is there. */
export async function visit(page, route) {
  await page.evaluate((hash) => (location.hash = hash), route);
  await settled(page);
}

/** Waits until the page shows data instead of a placeholder. */
export async function settled(page) {
  await page.locator('#main .page').waitFor();
  await page.locator('#main .skeleton').waitFor({ state: 'detached' });
}

/** The serious and critical findings of axe, as lines. */
export async function accessibility(page) {
  const isThere = await page.evaluate(() => typeof globalThis.axe === 'object');
  if (!isThere) await page.evaluate(`${await readFile(axe, 'utf8')}; undefined`);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, impact, nodes }) => nodes.map((node) => `${impact} ${id}: ${node.target.join(' ')}: ${node.failureSummary.replaceAll('\n', ' ')}`));
}

/** The elements that stick out of the page at its right side, without those in boxes that scroll by themselves. */
export const sticksOut = (page) =>
  page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const isOut = (element) => element.getBoundingClientRect().right > clientWidth + 0.5;
    const out = [...document.body.querySelectorAll('*')].filter(isOut);
    return [`${scrollWidth} of ${clientWidth} pixels`, ...out.slice(0, 8).map((element) => `${element.tagName}.${element.getAttribute('class') ?? ''}`)];
  });
