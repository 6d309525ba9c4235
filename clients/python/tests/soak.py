"""A worker for the soak test: it writes what it has done into a ledger, and ends when it is told to.

    soak.py URL QUEUE NAME LEDGER
"""

import os
import sys
import time

from geartrain import Retry, Worker

url, queue, name, ledger = sys.argv[1:]
worker = Worker([queue], url, name=name, concurrency=8, heartbeat=0.2, grace=0.5)


def note(word, job):
    # One write to a file that is only appended to, so that lines of several processes do not mix.
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{word} {job.jid}\n".encode())
    os.close(file)


@worker.on("double")
def double(job):
    note("done", job)
    return job.payload["n"] * 2


@worker.on("flaky")
def flaky(job):
    if job.remaining == job.document["retries"]:
        raise Retry("the first attempt fails", seconds=0)
    note("done", job)


@worker.on("broken")
def broken(job):
    raise KeyError(job.payload["n"])


@worker.on("strange")
def strange(job):
    return {1, 2}  # no JSON


@worker.on("endless")
def endless(job):
    note("began", job)
    job.lost.wait()
    note("lost", job)


@worker.on("slow")
def slow(job):
    # Longer than the grace on its first attempt, so that the worker hands it back.
    note("began", job)
    if name == "first":
        job.lost.wait()
        return
    note("done", job)


print("ready", flush=True)
worker.run()
