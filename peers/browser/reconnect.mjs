// The server dies and comes back while a page is open: node reconnect.mjs URL. Prints `kill` and `restart` for the test.

import assert from 'node:assert/strict';

import { ask, expectFaults, operate, run, settled, visit } from './browser.mjs';

await run(async ({ open }) => {
  const page = await open();
  await settled(page);
  await operate(page, { put: { queue: 'mail', klass: 'welcome', jid: 'before' } });
  await visit(page, '#/jobs/before');
  await page.evaluate(() => (globalThis.isSameDocument = true));
  const status = (text) => page.getByRole('button', { name: text, exact: true }).waitFor();
  const state = (name) => page.locator('.job-head .badge').getByText(name, { exact: true }).waitFor();
  await status('Live');
  await state('waiting');

  await expectFaults([/ERR_CONNECTION_REFUSED/, /ERR_INCOMPLETE_CHUNKED_ENCODING/, /ERR_CONNECTION_RESET/, /ERR_EMPTY_RESPONSE/], async () => {
    await ask('kill');
    await status('No answer');
    // What was known is still shown.
    await state('waiting');
    await ask('restart');
    await status('Live');
  });

  // The stream is a new one, and the page still follows it.
  const [popped] = await operate(page, { pop: { queue: 'mail', worker: 'w1' } });
  await state('running');
  await operate(page, { complete: { jid: 'before', token: popped.token } });
  await state('complete');
  assert.equal(await page.evaluate(() => globalThis.isSameDocument), true);
});
