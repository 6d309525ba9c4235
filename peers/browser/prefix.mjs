// The dashboard below a path, as a part of another program: node prefix.mjs URL, without a slash at its end

import assert from 'node:assert/strict';

import { home, run, settled, visit } from './browser.mjs';

await run(async ({ open }) => {
  const page = await open();
  await settled(page);
  const outside = [];
  page.on('request', (request) => request.url().startsWith(`${home}/`) || outside.push(request.url()));

  await page.keyboard.press('n');
  const dialog = page.getByRole('dialog');
  await dialog.getByLabel('Queue').fill('mail');
  await dialog.getByLabel('Klass').fill('welcome');
  await dialog.getByRole('button', { name: 'Put job', exact: true }).click();
  await page.locator('#toasts a').click();
  await page.locator('.job-head .badge').getByText('waiting', { exact: true }).waitFor();
  await page.getByText(`curl ${home}/v1/jobs/`).first().waitFor();
  for (const route of ['#/', '#/queues', '#/queues/mail', '#/jobs', '#/failures', '#/workers', '#/schedules', '#/tracked', '#/events', '#/settings']) {
    await visit(page, route);
    await page.getByRole('button', { name: 'Live', exact: true }).waitFor();
    assert.equal(await page.getByRole('alert').count(), 0, route);
  }
  assert.deepEqual(outside, []);
});
