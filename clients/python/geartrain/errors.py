"""Errors, by the stable codes that HTTP, the command and the Rust library have too."""

from __future__ import annotations

from typing import Optional


class GeartrainError(Exception):
    """The queue refused an operation. Nothing has changed, unless the code is `unavailable` or `unreadable`."""

    code = "refused"

    def __init__(self, message: str, code: Optional[str] = None, help: Optional[str] = None) -> None:
        super().__init__(message)
        self.message, self.help = message, help
        self.code = code or self.code


# One class for each code that programs tell apart; other refusals are a `GeartrainError` with their code.
# fmt: off
class NoSuchJob(GeartrainError): code = "no-such-job"
class LockLost(GeartrainError): code = "lock-lost"  # the attempt is over: stop working on the job
class Unfinished(GeartrainError): code = "unfinished"  # the job has not ended within the wait
class NoResult(GeartrainError): code = "no-result"  # the job has ended, and its result was not stored
class QueueFull(GeartrainError): code = "queue-full"
class NoCapableWorker(GeartrainError): code = "no-capable-worker"
class BadArgument(GeartrainError): code = "bad-argument"
class TooLarge(GeartrainError): code = "too-large"
class Unsupported(GeartrainError): code = "unsupported"  # the backend, such as a bare Redis, lacks the operation
class Unavailable(GeartrainError): code = "unavailable"  # it is not known whether the operation was done
# fmt: on


class JobFailed(Exception):
    """The job that `Client.wait` waited for has failed, or was cancelled."""

    def __init__(self, jid: str, how: str, group: Optional[str], message: Optional[str]) -> None:
        super().__init__(f"job {jid} {how}" + (f" in group {group}: {message}" if group else ""))
        self.jid, self.how, self.group, self.message = jid, how, group, message


_CLASSES = {kind.code: kind for kind in GeartrainError.__subclasses__()}


def from_document(error: dict[str, Optional[str]]) -> GeartrainError:
    """The error of a document such as `{"code": "lock-lost", "message": "…", "help": null}`."""
    code = error["code"] or "refused"
    return _CLASSES.get(code, GeartrainError)(error["message"] or code, code, error.get("help"))
