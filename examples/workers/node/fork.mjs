#!/usr/bin/env node
// Runs one job: payload on standard input, result on standard output.
import { readFileSync, writeSync } from "node:fs";
import { GiveUp, klasses } from "./files.mjs";

const RETRY = 75;
const GIVE_UP = 64;
console.log = console.error; // what job code prints is no part of the result

/** JSON if it is JSON, else text, else a Buffer. */
function decode(payload) {
  try {
    payload = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload);
    return JSON.parse(payload);
  } catch {
    return payload;
  }
}

const { GEARTRAIN_JOB_JID: jid, GEARTRAIN_JOB_KLASS: klass } = process.env;
const progress = (done, total) => writeSync(3, `progress ${done}/${total}\n`);
try {
  if (!Object.hasOwn(klasses, klass)) throw new GiveUp(`there is no klass ${klass} here`);
  const result = await klasses[klass](decode(readFileSync(0)), { jid, progress });
  process.stdout.write(Buffer.isBuffer(result) ? result : JSON.stringify(result ?? null));
} catch (error) {
  console.error(error);
  process.exitCode = error instanceof GiveUp ? GIVE_UP : RETRY;
}
