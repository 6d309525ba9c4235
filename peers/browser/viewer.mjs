// Logs in with the key of a viewer, which may look and change nothing: node viewer.mjs URL KEY

import assert from 'node:assert/strict';
import process from 'node:process';

import { expectFaults, home, run, send, settled, visit } from './browser.mjs';

const key = process.argv[3];
const ACTIONS = /^(put|retry|requeue|cancel|pause|resume|priority|tag|untag|track|untrack|run now|limits|change|add|remove|take away|edit|declare)\b(?!=)/i;
const ROUTES = ['#/', '#/queues', '#/queues/mail', '#/jobs', '#/jobs/j1', '#/failures', '#/failures/broken', '#/workers', '#/workers/w1', '#/schedules', '#/tracked', '#/events', '#/log', '#/settings'];

await run(async ({ open }) => {
  // Without a session every page leads to the form. A wrong key is refused, and says so.
  let page = null;
  await expectFaults([/status of 401/], async () => {
    page = await open();
    await page.waitForURL('**/login');
  });
  await page.getByLabel('Access key').fill('gtk_wrong');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.getByText('This key is not valid.').waitFor();
  await page.getByLabel('Access key').fill(key);
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.waitForURL(home);
  await settled(page);
  await page.locator('.badge.role', { hasText: 'viewer' }).waitFor();

  for (const route of ROUTES) {
    await visit(page, route);
    // The kinds of events are words such as `put` that choose what is shown.
    const names = await page.locator('button:not(.hint), a.button').evaluateAll((buttons) => buttons.map((one) => one.getAttribute('aria-label') ?? one.textContent));
    const actions = names.filter((name) => ACTIONS.test(name.trim()) && !/^pause$/i.test(name.trim()));
    assert.deepEqual(actions, [], route);
    assert.equal(await page.getByRole('alert').count(), 0, route);
  }
  await page.keyboard.press('n');
  assert.equal(await page.getByRole('dialog').count(), 0);

  // The server refuses them too, whatever the page shows.
  for (const [operation, role] of [
    [{ put: { queue: 'mail', klass: 'k' } }, 'operator'], [{ pause: { queues: ['mail'] } }, 'operator'], [{ cancel: { jid: 'j1' } }, 'operator'],
    [{ unfail: { group: 'broken' } }, 'operator'], [{ 'set-config': { key: 'heartbeat', value: '5' } }, 'admin'],
  ]) {
    const [status, { error }] = await send(page, operation);
    assert.deepEqual([status, error.code], [403, 'forbidden'], JSON.stringify(operation));
    assert.match(error.message, new RegExp(role));
  }
  for (const path of ['v1/audit', 'v1/settings']) {
    assert.equal((await page.request.get(new URL(path, home).href)).status(), 403, path);
  }

  // A session of another browser has nothing of this one, and this one ends.
  await visit(page, '#/');
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.waitForURL('**/login');
  assert.equal((await page.request.get(new URL('v1/queues', home).href)).status(), 401);
});
