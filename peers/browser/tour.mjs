// Works with the dashboard of a demonstration as an admin does: node tour.mjs URL

import assert from 'node:assert/strict';

import { expectFaults, operate, run, settled, until, visit } from './browser.mjs';

await run(async ({ open }) => {
  const page = await open();
  const button = (name, within = page) => within.getByRole('button', { name, exact: true });
  const dialog = page.getByRole('dialog');
  const toast = (text) => page.locator('#toasts').getByText(text).first().waitFor();
  const state = (name) => page.locator('.job-head .badge').getByText(name, { exact: true }).waitFor();

  // The page stays the same document for all that follows.
  await settled(page);
  await page.evaluate(() => (globalThis.isSameDocument = true));
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.getByText('per minute').waitFor();
  await button('Live').waitFor();
  await until('the figure of completed jobs moves', () => page.locator('.figure.is-complete .value').innerText(), (text) => Number(text) > 0);

  // Pauses a queue, and puts a job into it.
  await visit(page, '#/queues/images');
  await button('Pause').click();
  await dialog.getByText('Workers get no more jobs of this queue').waitFor();
  await button('Pause', dialog).click();
  await toast('images is paused.');
  await page.getByText('The queue is paused: workers get none of its jobs.').waitFor();
  const [images] = await operate(page, { queues: { queue: 'images' } });
  assert.equal(images.paused, true);
  await page.keyboard.press('n');
  await dialog.getByLabel('Queue').fill('images');
  await dialog.getByLabel('Klass').fill('thumbnail');
  await dialog.getByLabel('Payload').fill('{"file": "tour.jpg", "exact": 12345678901234567890.10}');
  await dialog.getByLabel('Priority').fill('100');
  await dialog.getByLabel('Tags').fill('tour, spring-tour');
  await button('Put job', dialog).click();
  await toast('Put job');
  await page.locator('#toasts a').click();

  // Reads why it waits, and sees it become complete without a reload.
  await state('waiting');
  await page.getByText('The queue images is paused.').waitFor();
  await page.getByText('12345678901234567890.10').waitFor();
  const jid = await page.locator('.jid code').innerText();
  const second = await open();
  await visit(second, '#/queues/images');
  await button('Resume', second).click();
  await state('complete');
  await page.getByText('Completed.').waitFor();
  await page.getByRole('heading', { name: 'Result' }).waitFor();
  assert.equal(await page.evaluate(() => globalThis.isSameDocument), true);

  // The payload as text and bytes, and the lines that do the same.
  const payload = page.locator('.card', { has: page.getByRole('heading', { name: 'Payload' }) });
  await button('Text', payload).click();
  await payload.getByText('{"file": "tour.jpg", "exact": 12345678901234567890.10}').waitFor();
  await button('Hex', payload).click();
  await payload.getByText('000000  7b 22').waitFor();
  await page.getByText(`geartrain get ${jid}`).waitFor();

  // Changes one job: priority, tags, tracking, cancellation.
  await visit(page, '#/jobs/cart-5503');
  await state('scheduled');
  await button('Priority').click();
  await dialog.getByLabel('Priority').fill('42');
  await button('Change', dialog).click();
  await toast('The priority is 42.');
  await button('Tag').click();
  await dialog.getByLabel('Tags').fill('checked');
  await button('Add', dialog).click();
  await page.locator('.tag', { hasText: 'checked' }).waitFor();
  await button('Track').click();
  await toast('The job is tracked.');
  await visit(page, '#/tracked');
  await page.getByTitle('cart-5503').first().waitFor();
  await button('Stop tracking cart-5503').click();
  await toast('The job is no longer tracked.');
  await visit(page, '#/jobs/cart-5503');
  await button('Cancel').click();
  await dialog.getByLabel('Reason').fill('the cart is empty');
  await button('Cancel job', dialog).click();
  await page.getByRole('heading', { name: 'This job was cancelled' }).waitFor();
  await page.getByText('the cart is empty').waitFor();

  // A failed job, and the one that waits for it; then its group is retried.
  await visit(page, '#/jobs/send-881');
  await page.getByText('It waits for 1 job, such as').waitFor();
  await page.getByText('A dependency has failed:').waitFor();
  await visit(page, '#/failures');
  await button('Retry all of template-error').click();
  await dialog.getByText('All jobs of the group template-error are put again').waitFor();
  await button('Retry 1 job', dialog).click();
  await toast('Put 1 job again.');
  await page.getByRole('link', { name: 'template-error' }).waitFor({ state: 'detached' });
  await visit(page, '#/jobs/render-881');
  await state('waiting');

  // Searches by a tag with the keyboard, and acts on all that it selects.
  await page.keyboard.press('/');
  await page.keyboard.type('tag=legal');
  await page.keyboard.press('Enter');
  await settled(page);
  await page.getByRole('link', { name: 'render', exact: true }).waitFor();
  await page.getByRole('link', { name: 'send', exact: true }).waitFor();
  assert.equal(await page.locator('#jobs tbody tr').count(), 2);
  await visit(page, '#/jobs?where=tag%3Dspring');
  await button('Priority', page.locator('.bulk')).click();
  await dialog.getByText('Exactly 40 jobs are selected now by:').waitFor();
  await dialog.getByLabel('Priority').fill('7');
  await button('Change priority of 40 jobs', dialog).click();
  await toast('Changed 40 jobs.');
  const newsletter = await operate(page, { get: { jid: 'issue-spring-40' } });
  assert.equal(newsletter.priority, 7);
  await visit(page, '#/jobs?where=tag%3D%22spring-tour%22');
  await page.getByRole('checkbox', { name: `Choose ${jid}` }).check();
  await button('Cancel', page.locator('.bulk')).waitFor();
  await button('Requeue', page.locator('.bulk')).click();
  await button('Requeue 1 job', dialog).click();
  await toast('Changed 1 job.');

  // A filter that is wrong says how.
  await expectFaults([/status of 400/], async () => {
    await visit(page, '#/jobs?where=colour%3Dred');
    await page.getByRole('alert').getByText('colour').waitFor();
  });

  // A schedule: its next five runs, and one of them now.
  await visit(page, '#/schedules');
  const row = page.locator('tr', { hasText: 'opening-report' });
  await row.getByRole('cell').getByText('4 more').locator('visible=true').click();
  assert.equal(await row.locator('ol li').locator('visible=true').count(), 4);
  await button('Run now: export-orders').click();
  await button('Run now', dialog).click();
  await toast('Put job');

  // Keys.
  await page.keyboard.press('?');
  await dialog.getByText('Pause or resume updates').waitFor();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await page.keyboard.press('g');
  await page.keyboard.press('q');
  await page.getByRole('heading', { name: 'Queues', level: 1 }).waitFor();
  assert.match(page.url(), /#\/queues$/);
  await page.keyboard.press('p');
  await button('Paused').waitFor();
  await page.keyboard.press('p');
  await page.keyboard.press('d');
  await page.locator('html[data-theme=dark]').waitFor();

  // The settings of the server, and where each comes from.
  await visit(page, '#/settings');
  await page.locator('#settings tr', { hasText: '--resp' }).getByText('127.0.0.1:0').waitFor();

  // Events come as they happen.
  await visit(page, '#/events?event=completed');
  await page.locator('.events li').first().waitFor();
});
