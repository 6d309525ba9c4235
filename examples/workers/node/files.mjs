// Jobs about files: a function for each klass. It gets the payload and the job, and returns the result.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";

/** An error that another attempt cannot repair. Any other error retries the job. */
export class GiveUp extends Error {
  name = "GiveUp";
}

export const klasses = {
  /** Counts lines. A file that is missing may still come: its error retries the job. */
  async count({ paths }, job) {
    if (!Array.isArray(paths)) throw new GiveUp("`paths` must be a list");
    let lines = 0;
    for (const [index, path] of paths.entries()) {
      const text = await readFile(path, { encoding: "utf8", signal: job.signal });
      lines += text.split("\n").length - 1;
      job.progress(index + 1, paths.length);
    }
    return { lines };
  },

  checksum(payload) {
    return createHash("sha256").update(payload).digest("hex");
  },
};
