"""A worker: runs the jobs of queues with handlers, and keeps their locks."""

from __future__ import annotations

import logging
import math
import os
import queue as queues
import signal
import socket
import threading
import time
import traceback
from typing import Any, Callable, Optional, Sequence

from .client import Client, decode, encode
from .errors import GeartrainError, LockLost, Unavailable

LOG = logging.getLogger("geartrain")
POP_SECONDS = 1.0  # so that a signal is noticed at once
LOCK_GONE = ("lock-lost", "no-such-job", "not-running", "held-by-another")
MESSAGE_CHARS = 20_000
RELEASE_SECONDS = 5.0  # how long handing back may take; the lock of a job that is not handed back expires


class Retry(Exception):
    """Raised by a handler: the job is retried after `seconds`, or when its backoff says. Uses up a retry."""

    def __init__(self, message: str = "", seconds: Optional[float] = None, group: Optional[str] = None) -> None:
        super().__init__(message)
        self.seconds, self.group = seconds, group


class Fail(Exception):
    """Raised by a handler: the job fails now, into a group of failures."""

    def __init__(self, group: str, message: str) -> None:
        super().__init__(message)
        self.group = group


class Job:
    """A job that this worker holds."""

    def __init__(self, client: Client, document: dict[str, Any]) -> None:
        self._client = client
        self.jid: str = document["jid"]
        self.queue: str = document["queue"]
        self.klass: str = document["klass"]
        self.payload: Any = decode(document["payload"])
        self.remaining: int = document["remaining"]
        self.token: str = document["token"]
        self.document = document
        #: Set when the lock is lost, the job is cancelled, or the worker hands it back: stop working on it.
        self.lost = threading.Event()

    def check(self) -> None:
        """Raises `LockLost` if the job is not this worker's any more. Long handlers call it."""
        if self.lost.is_set():
            raise LockLost(f"the lock on job {self.jid} is lost")

    def ask(self, operation: str, **fields: Any) -> Any:
        """An operation of this attempt, such as ``chunk``."""
        return self._client.ask(operation, jid=self.jid, token=self.token, **fields)

    def progress(self, part: int, whole: int, text: Optional[str] = None) -> None:
        """Reports progress: `part` of `whole`."""
        self.check()
        self.ask("progress", part=part, whole=whole, text=text)


Handler = Callable[[Job], Any]


class Worker:
    """Runs jobs of `queues` with handlers by klass, `concurrency` at a time, each on a thread.

    A handler's return value is the result. `Retry` and `Fail` say what becomes of the job; any other exception is a
    retry whose group is the name of the exception. `run` returns after SIGTERM or SIGINT: running jobs have `grace`
    seconds to finish, and are then handed back without using up a retry.
    """

    def __init__(self, queues: Sequence[str], url: Optional[str] = None, *, name: Optional[str] = None,
                 concurrency: int = 1, heartbeat: float = 5.0, grace: float = 30.0) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.concurrency, self.heartbeat, self.grace = concurrency, heartbeat, grace
        self._queues, self._client = list(queues), Client(url)
        self._handlers: dict[Optional[str], Handler] = {}
        self._running: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._ended = threading.Event()

    def on(self, klass: Optional[str] = None) -> Callable[[Handler], Handler]:
        """A decorator: the function runs jobs of this klass, or of every klass that has no function of its own."""
        def register(handler: Handler) -> Handler:
            self._handlers[klass] = handler
            return handler
        return register

    def stop(self) -> None:
        """Ends `run`, as SIGTERM does."""
        self._stopping.set()

    def run(self, drain: bool = False) -> None:
        """Runs jobs until it is stopped; with `drain` until the queues have no job that is ready."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        work: queues.Queue[Job] = queues.Queue()
        for _ in range(self.concurrency):
            threading.Thread(target=self._work, args=(work,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        pause = 0.1
        while not self._stopping.is_set():
            with self._changed:
                free = self.concurrency - len(self._running)
                if not free:
                    self._changed.wait(POP_SECONDS)
                    continue
            try:
                found = self._pop(free, 0.0 if drain else POP_SECONDS)
                pause = 0.1
            except (OSError, Unavailable) as error:
                LOG.warning("cannot ask for jobs, trying again in %g seconds: %s", pause, error)
                self._stopping.wait(pause)
                pause = min(pause * 2, 10.0)
                continue
            for job in found:
                with self._changed:
                    self._running[job.jid] = job
                work.put(job)
            if drain and not found:
                with self._changed:
                    if not self._running:
                        break
                    self._changed.wait(POP_SECONDS)
        self._finish()

    def _pop(self, count: int, wait: float) -> list[Job]:
        klasses = None if None in self._handlers else list(self._handlers)
        found = self._client.ask("pop", wait=wait, queues=self._queues, worker=self.name, count=count, klasses=klasses)
        return [Job(self._client, document) for document in found]

    def _work(self, work: queues.Queue[Job]) -> None:
        while True:
            job = work.get()
            try:
                self._report(job, *self._execute(job))
            finally:
                with self._changed:
                    self._running.pop(job.jid, None)
                    self._changed.notify_all()

    def _execute(self, job: Job) -> tuple[str, dict[str, Any]]:
        """Runs the handler. Returns the report."""
        if self._stopping.is_set():
            return "release", {"message": f"{self.name} is stopping"}
        try:
            handler = self._handlers.get(job.klass) or self._handlers[None]
            value = handler(job)
            return "complete", {} if value is None else {"result": encode(value)}
        except Retry as error:
            return "retry", {"in_": error.seconds, "group": error.group, "message": str(error)[:MESSAGE_CHARS]}
        except Fail as error:
            return "fail", {"group": error.group, "message": str(error)[:MESSAGE_CHARS]}
        except (Exception, SystemExit) as error:
            LOG.warning("job %s of klass %s is retried", job.jid, job.klass, exc_info=True)
            message = "".join(traceback.format_exception_only(type(error), error)).strip()
            return "retry", {"group": type(error).__name__, "message": message[:MESSAGE_CHARS]}

    def _report(self, job: Job, operation: str, fields: dict[str, Any], until: float = math.inf) -> None:
        """Reports until the queue has answered: a report that is repeated is answered as the first one."""
        pause = 0.1
        while not job.lost.is_set() and time.monotonic() < until:
            try:
                job.ask(operation, **fields)
                return
            except (OSError, Unavailable):
                pass
            except GeartrainError as error:
                if error.code in LOCK_GONE:
                    return job.lost.set()
                # The report itself is refused, such as a result that is too large.
                operation, fields = "fail", {"group": f"report-{error.code}", "message": error.message}
            except (TypeError, ValueError) as error:
                operation, fields = "fail", {"group": "report-not-json", "message": f"the result is no JSON: {error}"}
            job.lost.wait(pause)
            pause = min(pause * 2, 5.0)

    def _beat(self) -> None:
        """Extends the locks of running jobs, and notices those that are lost."""
        while not self._ended.wait(self.heartbeat):
            with self._changed:
                jobs = list(self._running.values())
            if not jobs:
                continue
            try:
                beats = [{"heartbeat": {"jid": job.jid, "token": job.token}} for job in jobs]
                for job, reply in zip(jobs, self._client.request(beats)):
                    if "error" in reply and reply["error"]["code"] in LOCK_GONE:
                        job.lost.set()
            except (OSError, GeartrainError):
                continue

    def _finish(self) -> None:
        """Waits for running jobs, and hands back those that take too long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, self.grace)
            left = list(self._running.values())
        until = time.monotonic() + RELEASE_SECONDS
        for job in left:
            self._report(job, "release", {"message": f"{self.name} has stopped"}, until)
            job.lost.set()
        self._ended.set()
