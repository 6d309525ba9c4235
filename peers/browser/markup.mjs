// Jobs whose names, tags, payloads and messages are markup: node markup.mjs URL

import assert from 'node:assert/strict';

import { operate, run, until, visit } from './browser.mjs';

const MARK = '<img src=x onerror="globalThis.isHacked=true"><script>globalThis.isHacked=true</script>';
const LINK = 'javascript:globalThis.isHacked=true';
const jid = `1"><svg onload=globalThis.isHacked=true>`;
const queue = `q${MARK}`;
const klass = `k${MARK}`;
const worker = `w${MARK}`;
const group = `g${MARK}`;

await run(async ({ open }) => {
  const page = await open();
  const put = (fields) => operate(page, { put: { queue, klass, tags: [`t${MARK}`, LINK], payload: { [MARK]: MARK }, retries: 0, ...fields } });
  await put({ jid });
  await put({ jid: 'waits', depends: [jid] });
  const [popped] = await operate(page, { pop: { queue, worker } });
  await operate(page, { log: { jid, message: `l${MARK}` } });
  await operate(page, { fail: { jid, token: popped.token, group, message: `m${MARK}` } });
  await put({ jid: 'held' });
  await operate(page, { pop: { queue, worker } });
  await operate(page, { recur: { queue, klass, jid: `r${MARK}`, every: '1h' } });
  await operate(page, { track: { jid } });
  await put({ jid: LINK, payload: `p${MARK}`, queue: LINK, klass: LINK });

  const part = (name) => encodeURIComponent(name);
  for (const [route, ...shown] of [
    ['#/', queue, worker, group], ['#/queues', queue, LINK], [`#/queues/${part(queue)}?tab=failed`, klass], ['#/jobs', klass, `t${MARK}`],
    [`#/jobs/${part(jid)}`, klass, jid, `m${MARK}`, `l${MARK}`, `t${MARK}`, '"<img src=x onerror=\\"globalThis.isHacked=true\\">'],
    [`#/jobs/${part(LINK)}`, LINK, `p${MARK}`], ['#/failures', group, `m${MARK}`], [`#/failures/${part(group)}`, `m${MARK}`], ['#/workers', worker],
    [`#/workers/${part(worker)}`, klass], ['#/schedules', klass, `r${MARK}`], ['#/tracked', klass], [`#/jobs?where=${part(`tag="t${MARK.replaceAll('"', '\\"')}"`)}`, klass],
  ]) {
    await visit(page, route);
    for (const text of shown) {
      await until(`${route} shows ${text}`, () => page.locator('#main').innerText(), (all) => all.includes(text));
    }
    await page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = true)));
    const made = await page.evaluate(() => document.querySelectorAll('body img, body script, [onload], [onerror], a[href^="javascript:" i]').length);
    assert.equal(made, 0, route);
    assert.equal(await page.evaluate(() => globalThis.isHacked), undefined, route);
  }

  // The events of such a job, as they come, and the question before an act.
  await visit(page, '#/events');
  // The stream begins some time after the page is there.
  const shown = async () => {
    await put({});
    return page.locator('.events li', { hasText: queue }).count();
  };
  await until('an event is shown', shown, (count) => count > 0);
  await visit(page, `#/failures/${part(group)}`);
  await page.getByRole('button', { name: 'Retry all', exact: true }).click();
  await page.getByRole('dialog').getByText(group).first().waitFor();
  assert.equal(await page.evaluate(() => globalThis.isHacked), undefined);
});
