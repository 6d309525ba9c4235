#!/usr/bin/env node
// Runs job after job, or several at once with --slots. A cancelled job is aborted through `job.signal`.
import { GiveUp, klasses } from "./files.mjs";

console.log = console.error; // what job code prints is no line of the protocol
const send = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const running = new Map(); // an AbortController for each jid

async function run({ jid, queue, klass, payload, encoding }) {
  const controller = new AbortController();
  running.set(jid, controller);
  const progress = (done, total) => send({ jid, progress: [done, total] });
  try {
    if (!Object.hasOwn(klasses, klass)) throw new GiveUp(`there is no klass ${klass} here`);
    const data = encoding === "bytes" ? Buffer.from(payload.$bytes, "base64") : payload;
    const result = await klasses[klass](data, { jid, progress, signal: controller.signal });
    send({ jid, complete: Buffer.isBuffer(result) ? { $bytes: result.toString("base64") } : (result ?? null) });
  } catch (error) {
    const reason = { group: `${queue}-${error.name}`, message: error.stack };
    if (controller.signal.aborted) send({ jid, release: { message: "aborted" } });
    else send(error instanceof GiveUp ? { jid, fail: reason } : { jid, retry: reason });
  } finally {
    running.delete(jid);
  }
}

send({ ready: true, cancel: true });
let rest = "";
// Not node:readline, which also breaks lines at U+2028 within JSON strings.
for await (const chunk of process.stdin.setEncoding("utf8")) {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  for (const message of lines.map((line) => JSON.parse(line))) {
    if (message.cancel) running.get(message.cancel)?.abort();
    else run(message);
  }
}
