#!/usr/bin/env python3
"""Runs job after job: imports the klass, calls the method named like the queue, else `process`."""
import base64, importlib, inspect, json, signal, sys, traceback
from types import SimpleNamespace

lines, sys.stdout = sys.stdout, sys.stderr  # what job code prints is no line of the protocol
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cancelled: `finally` blocks run


def send(**line):  # a value without a JSON form raises before anything is written
    print(json.dumps(line, allow_nan=False), file=lines, flush=True)


def run(job):
    def fail(kind, message):
        send(jid=job.jid, fail={"group": f"{job.queue}-{kind}", "message": message})
    try:
        module, _, name = job.klass.rpartition(".")
        klass = getattr(importlib.import_module(module), name)
    except Exception as error:
        return fail(type(error).__name__, f"Failed to import {job.klass}: {error}")
    method = job.queue if hasattr(klass, job.queue) else "process"
    if not hasattr(klass, method):
        return fail("method-missing", f"{job.klass} has no method {job.queue} and no method process")
    if not isinstance(inspect.getattr_static(klass, method), staticmethod):
        return fail("method-type", f"{job.klass}.{method} is not a static method")
    try:
        send(jid=job.jid, complete=getattr(klass, method)(job))
    except getattr(klass, "retry_on", (ConnectionError, TimeoutError)) as error:
        send(jid=job.jid, retry={"group": f"{job.queue}-{type(error).__name__}", "message": str(error)})
    except Exception as error:
        fail(type(error).__name__, traceback.format_exc())

send(ready=True)
for line in sys.stdin.buffer:
    job = SimpleNamespace(**json.loads(line))
    job.data = base64.b64decode(job.payload["$bytes"]) if job.encoding == "bytes" else job.payload
    job.progress = lambda done, total: send(jid=job.jid, progress=[done, total])
    run(job)
