// Looks at each page of a demonstration in both themes, at the width of a screen and of a phone:
//
//     node pages.mjs URL [PAGE…]       without names: all pages
//
// No page may have a serious or critical finding of axe, nor be scrolled sideways. What each looks like is written to
// target/screenshots.

import assert from 'node:assert/strict';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import process from 'node:process';

import { accessibility, home, operate, run, screenshots, settled, sticksOut, until, visit } from './browser.mjs';

const THEMES = ['light', 'dark'];
const SIZES = { screen: { width: 1280, height: 860 }, phone: { width: 320, height: 640 } };

await mkdir(screenshots, { recursive: true });

await run(async ({ open }) => {
  const first = await open();
  const jobs = async (where) => (await operate(first, { jobs: { where, limit: 1 } })).items;
  const one = async (where) => (await until(where, () => jobs(where), (found) => found.length > 0))[0].jid;
  await until('the fixtures are there', () => jobs('klass=publish'), (found) => found.length > 0);
  // By the address, or by a filter that finds the job.
  const routes = {
    overview: '#/', queues: '#/queues', queue: '#/queues/billing', 'queue-paused': '#/queues/newsletter', 'queue-none': '#/queues/nowhere',
    jobs: '#/jobs', 'jobs-failed': '#/jobs?where=state%3Dfailed', 'jobs-none': '#/jobs?where=tag%3Dnone',
    'job-running': 'klass=transcode state=running', 'job-depends': 'klass=publish', 'job-failed': '#/jobs/render-881', 'job-no-worker': '#/jobs/import-stock.csv', 'job-stalled': '#/jobs/index-7001',
    failures: '#/failures', group: '#/failures/template-error', workers: '#/workers', worker: '#/workers/media-1', schedules: '#/schedules', tracked: '#/tracked',
    events: '#/events', log: '#/log', settings: '#/settings', audit: '#/audit', missing: '#/nowhere',
  };
  const wanted = process.argv.slice(3);
  const isWanted = (name) => wanted.length === 0 || wanted.includes(name);
  const findings = [];
  const look = async (page, name) => {
    const found = [...(await accessibility(page)), ...(await sticksOut(page)).map((part) => `sticks out: ${part}`)];
    found.forEach((finding) => process.stderr.write(`${name}: ${finding}\n`));
    findings.push(...found);
    await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
  };
  for (const theme of THEMES) {
    for (const [size, viewport] of Object.entries(SIZES)) {
      const page = await open({ theme, ...viewport });
      await settled(page);
      for (const [route, hash] of Object.entries(routes).filter(([name]) => isWanted(name))) {
        await visit(page, hash.startsWith('#') ? hash : `#/jobs/${await one(hash)}`);
        if (route === 'events') await page.locator('.events li').nth(3).waitFor();
        await look(page, `${route}-${theme}-${size}`);
      }
      const dialog = page.getByRole('dialog');
      for (const [name, key] of [['keyboard', '?'], ['put', 'n']].filter(([name]) => isWanted(name))) {
        await page.keyboard.press(key);
        await dialog.waitFor();
        await look(page, `${name}-${theme}-${size}`);
        await page.keyboard.press('Escape');
        await dialog.waitFor({ state: 'detached' });
      }
      if (size === 'phone' && isWanted('navigation')) {
        await page.getByRole('button', { name: 'Navigation', exact: true }).click();
        await page.locator('body.nav-open').waitFor();
        await look(page, `navigation-${theme}-${size}`);
      }
      if (isWanted('login')) {
        await page.goto(new URL('login?failed', home).href);
        await page.getByText('This key is not valid.').waitFor();
        await look(page, `login-${theme}-${size}`);
      }
      await page.close();
    }
  }
  assert.equal(findings.length, 0, 'no page has a finding');
});
