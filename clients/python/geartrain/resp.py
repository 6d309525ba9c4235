"""Connections in the Redis protocol, and a pool of them."""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any, Iterable
from urllib.parse import parse_qs, unquote, urlsplit

CONNECT_SECONDS = 10.0
REPLY_SECONDS = 30.0


class ReplyError(Exception):
    """An error of the server that is no document, such as a wrong password."""


class Address:
    """A URL: ``redis://``, ``rediss://`` or ``unix://``, with a user and password, and a ``prefix`` (the namespace)."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss", "valkey", "valkeys", "unix"):
            raise ValueError(f"{url!r} is not a URL like redis://127.0.0.1:7411")
        query = parse_qs(parts.query)
        self.is_unix = parts.scheme == "unix"
        self.path = unquote(parts.path)
        self.tls = parts.scheme in ("rediss", "valkeys")
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 6379
        self.user, self.password = (unquote(part) if part else None for part in (parts.username, parts.password))
        self.database = int(self.path.strip("/") or 0) if not self.is_unix else 0
        self.namespace = query.get("prefix", [""])[0]


class Connection:
    """One connection; a request at a time."""

    def __init__(self, address: Address) -> None:
        try:
            if address.is_unix:
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.connect(address.path)
            else:
                self._socket = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            place = address.path if address.is_unix else f"{address.host}:{address.port}"
            raise ConnectionError(f"cannot connect to {place}: {error}; `geartrain server` starts a server") from error
        if address.tls:
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
        self._reader = self._socket.makefile("rb")
        if address.password:
            self.call(["AUTH", *([address.user] if address.user else []), address.password])
        if address.database:
            self.call(["SELECT", str(address.database)])

    def call(self, arguments: Iterable[str], seconds: float = REPLY_SECONDS) -> Any:
        """Sends a command and returns its reply; `seconds` is how long that may take."""
        encoded = [argument.encode() for argument in arguments]
        request = b"".join([b"*%d\r\n" % len(encoded), *(b"$%d\r\n%s\r\n" % (len(a), a) for a in encoded)])
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(request)
            return self._reply()
        except TimeoutError as error:
            raise ConnectionError(f"no reply within {seconds:g} seconds") from error

    def _reply(self) -> Any:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server has closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ReplyError(rest.decode(errors="replace"))
        if kind in (b"+", b":"):
            return int(rest) if kind == b":" else rest.decode()
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self._reader.read(int(rest) + 2)
            if len(data) != int(rest) + 2:
                raise ConnectionError("the server has closed the connection")
            return data[:-2].decode()
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        raise ConnectionError(f"this is not the Redis protocol: {line[:40]!r}")

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


class Pool:
    """Idle connections, for any number of threads."""

    def __init__(self, address: Address) -> None:
        self._address, self._lock, self._idle = address, threading.Lock(), list[Connection]()

    def call(self, arguments: list[str], seconds: float = REPLY_SECONDS) -> Any:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or Connection(self._address)
        try:
            reply = connection.call(arguments, seconds)
        except ReplyError:
            self._put_back(connection)
            raise
        except BaseException:
            # The reply may still come, and would pass for that of the next request. Idle connections may be lost too.
            connection.close()
            self.close()
            raise
        self._put_back(connection)
        return reply

    def _put_back(self, connection: Connection) -> None:
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
