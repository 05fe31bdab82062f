"""
The network of the blocking shape: one connection, its timeouts, and time. `aio/_network.py` has the same names for the
asynchronous shape.
"""
from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any, Callable, List, Optional, TypeVar

from .._http import Address

READ_BYTES = 64 * 1024
Result = TypeVar("Result")
sleep = time.sleep


class Network:
    """A connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    @classmethod
    def connect(cls, to: Address, tls: Optional[ssl.SSLContext], timeout_seconds: float) -> Network:
        try:
            connection = socket.create_connection((to.host, to.port), timeout_seconds)
        except socket.timeout:
            raise OSError(f"no connection within {timeout_seconds:g} s") from None
        if tls is None:
            return cls(connection)
        try:
            return cls(tls.wrap_socket(connection, server_hostname=to.host))
        except BaseException:
            connection.close()
            raise

    def read(self, timeout_seconds: float) -> bytes:
        """What has come; empty at the end. Raises OSError."""
        self._connection.settimeout(timeout_seconds)
        try:
            return self._connection.recv(READ_BYTES)
        except socket.timeout:
            raise OSError(f"nothing came for {timeout_seconds:g} s") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    def write(self, piece: bytes, timeout_seconds: float) -> None:
        """Raises OSError."""
        self._connection.settimeout(timeout_seconds)
        try:
            self._connection.sendall(piece)
        except socket.timeout:
            raise OSError(f"nothing was taken for {timeout_seconds:g} s") from None

    def close(self) -> None:
        self._connection.close()


def beside(side: Callable[[], Any], main: Callable[[], Result]) -> Result:
    """Runs both at the same time, and returns the result of `main`, which must make `side` end."""
    failures: List[BaseException] = []

    def run() -> None:
        try:
            side()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    result = main()
    thread.join()
    if failures:
        raise failures[0]
    return result
