"""A client of a queue: every operation of JSON over RESP, and methods for the frequent ones."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Iterator, Optional, Union

from .errors import JobFailed, Unavailable, from_document
from .resp import REPLY_SECONDS, Address, Pool, ReplyError

DEFAULT_URL = "redis://127.0.0.1:7411"
FUNCTION = "geartrain_json"
# How long one request waits; a longer wait is several requests.
WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Result:
    """How a job ended, and what it returned."""

    jid: str
    how: str
    value: Any
    code: Optional[int]
    group: Optional[str]
    message: Optional[str]

    @property
    def ok(self) -> bool:
        return self.how == "completed" and not self.code


def encode(value: Any) -> Any:
    """A payload or result in a document: bytes as they are, other values as JSON, so that they come back unchanged."""
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    # The text of a string in a document is stored without its quotes, and might then read as a number.
    return json.dumps(value) if isinstance(value, str) or value is None else value


def decode(value: Any) -> Any:
    """The inverse of `encode`; text that is not JSON is a `str`."""
    if isinstance(value, dict) and list(value) == ["$bytes"]:
        return base64.b64decode(value["$bytes"])
    return value


def new_jid() -> str:
    """A UUID of version 7, in hexadecimal digits."""
    number = int.from_bytes(int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10), "big")
    return f"{number & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62:032x}"


class Client:
    """A queue: a geartrain server, or a Redis with the library that `geartrain lua --json` prints.

    It may be used by several threads.
    """

    def __init__(self, url: Optional[str] = None) -> None:
        address = Address(url or os.environ.get("GEARTRAIN_URL") or DEFAULT_URL)
        self._pool, self._namespace = Pool(address), address.namespace

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    def request(self, document: Any, wait: float = 0.0) -> Any:
        """Sends a document, one operation or a list of them, and returns the document of the reply."""
        try:
            text = json.dumps(document, ensure_ascii=False, allow_nan=False)
            reply = self._pool.call(["FCALL", FUNCTION, "1", self._namespace, text], REPLY_SECONDS + wait)
        except ReplyError as error:
            if "Function not found" in str(error):
                raise Unavailable(
                    "this Redis lacks the function geartrain_json",
                    help="load it: geartrain lua --json | redis-cli -x FUNCTION LOAD REPLACE",
                ) from error
            raise Unavailable(str(error)) from error
        return json.loads(reply)

    def ask(self, operation: str, /, wait: float = 0.0, **fields: Any) -> Any:
        """Executes one operation, such as ``ask("queues")``; a refusal is raised. Fields that are None are left out.

        ``in_`` stands for the field ``in``. With `wait` it answers when there is something, or when the time is over.
        """
        given = {key.rstrip("_"): value for key, value in fields.items() if value is not None}
        until = time.monotonic() + wait
        while True:
            left = max(until - time.monotonic(), 0.0)
            step = min(left, WAIT_SECONDS)
            reply = self.request({operation: {**given, "wait": step} if step else given}, step)
            if isinstance(reply, dict):
                if "error" in reply:
                    error = from_document(reply["error"])
                    if error.code != "unfinished" or left <= step:
                        raise error
                    continue
                if "wait" in reply:
                    # A script cannot block: the client waits, and asks again.
                    seconds = min(reply["wait"]["seconds"], max(left, 0.01))
                    self._pool.call(["BLPOP", reply["wait"]["blpop"], f"{seconds:.3f}"], REPLY_SECONDS + seconds)
                    continue
            if reply or left <= step:
                return reply

    def put(self, queue: str, klass: str, payload: Any = None, **options: Any) -> str:
        """Puts a job and returns its jid.

        Options: priority, in_, at, tags, depends, retries, jid, replace, unique, timeout, expires, backoff, crashes,
        roll_call, keep_result, on_dependency_failure, traceparent. See docs/formats/json.md.
        """
        options.setdefault("jid", new_jid())
        fields = {"queue": queue, "klass": klass, "payload": encode(payload), **options}
        try:
            return str(self.ask("put", **fields)["jid"])
        except ConnectionError:
            # Safe: a put of a jid that exists changes nothing.
            return str(self.ask("put", **fields)["jid"])

    def get(self, jid: str) -> dict[str, Any]:
        """The job as a document, with its history."""
        return dict(self.ask("get", jid=jid))

    def why(self, jid: str) -> list[dict[str, Any]]:
        """The reasons why the job is not running; each has a `reason`."""
        return list(self.ask("why", jid=jid)["reasons"])

    def cancel(self, *jids: str, because: Optional[str] = None) -> int:
        """Cancels jobs and returns how many."""
        return int(self.ask("cancel", jids=list(jids), because=because)["cancelled"])

    def result(self, jid: str, wait: float = 0.0) -> Result:
        """The result of a job that was put with `keep_result`; `wait` is how many seconds to wait for its end."""
        reply = self.ask("result", wait=wait, jid=jid)
        return Result(jid, reply["how"], decode(reply["result"]), reply["code"], reply["group"], reply["message"])

    def wait(self, jid: str, seconds: float) -> Any:
        """Waits for a job and returns its value. Raises `JobFailed`, or `Unfinished` when the time is over."""
        result = self.result(jid, seconds)
        if not result.ok:
            raise JobFailed(jid, result.how, result.group, result.message)
        return result.value

    def events(self, after: Union[int, str], wait: float = 3600.0) -> Iterator[dict[str, Any]]:
        """The events after a position, until `wait` seconds pass without one. Not on a bare Redis."""
        while True:
            found = self.ask("events", wait=wait, after=str(after))
            if not found:
                return
            for event in found:
                yield event
                after = event["position"]
