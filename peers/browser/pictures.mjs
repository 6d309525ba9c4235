// The pictures of README.md, from a demonstration that has run for a while: node pictures.mjs URL DIRECTORY

import { join } from 'node:path';
import process from 'node:process';

import { home, operate, run, settled, until, visit } from './browser.mjs';

const directory = process.argv[3];
/** So many samples make a chart: three minutes. */
const SAMPLES = 90;

await run(async ({ open }) => {
  const light = await open({ height: 800 });
  await settled(light);
  const sampled = async () => {
    const history = await (await light.request.get(new URL('v1/history?span=10m', home).href)).json();
    return history.total.completed.filter((value) => value !== null).length;
  };
  await until('the demonstration has run for a while', sampled, (count) => count >= SAMPLES, 5 * 60_000);
  const take = async (page, name) => {
    await settled(page);
    await page.mouse.move(0, 0);
    await page.screenshot({ path: join(directory, `${name}.png`) });
  };
  await take(light, 'overview');
  await visit(light, '#/queues/webhooks');
  await take(light, 'queue');
  const dark = await open({ theme: 'dark', height: 800 });
  const declined = () => operate(dark, { jobs: { where: 'klass=charge-card state=failed attempts>1', limit: 1 } });
  const { items } = await until('a charge failed after a retry', declined, (page) => page.items.length > 0, 2 * 60_000);
  await visit(dark, `#/jobs/${items[0].jid}`);
  await take(dark, 'job');
});
