#!/usr/bin/env python3
"""Runs one job: imports its klass, calls the method named like its queue, else `process`."""
import importlib, inspect, json, os, sys, traceback
from types import SimpleNamespace

RETRY, GIVE_UP = 75, 64
stdout, sys.stdout = sys.stdout.buffer, sys.stderr  # what job code prints is no part of the result


def decode(payload):
    """JSON if it is JSON, else text, else bytes."""
    try:
        payload = payload.decode()
        return json.loads(payload)
    except ValueError:
        return payload


def progress(done, total):
    os.write(3, f"progress {done}/{total}\n".encode())


job = SimpleNamespace(data=decode(sys.stdin.buffer.read()), progress=progress)
for name in ("JID", "QUEUE", "KLASS", "ATTEMPT"):
    setattr(job, name.lower(), os.environ["GEARTRAIN_JOB_" + name])
retry_on = ()
try:
    module, _, name = job.klass.rpartition(".")
    klass = getattr(importlib.import_module(module), name)
    retry_on = getattr(klass, "retry_on", (ConnectionError, TimeoutError))
    method = job.queue if hasattr(klass, job.queue) else "process"
    if not isinstance(inspect.getattr_static(klass, method), staticmethod):
        raise TypeError(f"{job.klass}.{method} is not a static method")
    result = getattr(klass, method)(job)
    stdout.write(result if isinstance(result, bytes) else json.dumps(result).encode())
except Exception as error:
    traceback.print_exc()
    sys.exit(RETRY if isinstance(error, retry_on) else GIVE_UP)
