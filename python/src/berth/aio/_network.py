"""
The network of the asynchronous client: one connection, its timeouts, and sleep. `_sync/_network.py` defines the same
names for the blocking client.
"""
from __future__ import annotations

import asyncio
import ssl
from typing import Any, Awaitable, Callable, Optional, TypeVar

from .._http import Address

READ_BYTES = 64 * 1024
Result = TypeVar("Result")
sleep = asyncio.sleep


class Network:
    """A connection. When its task is cancelled, `close` ends it at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._timed_out = False

    @classmethod
    async def connect(cls, to: Address, tls: Optional[ssl.SSLContext], timeout_seconds: float) -> Network:
        opening = asyncio.ensure_future(
            asyncio.open_connection(to.host, to.port, ssl=tls, server_hostname=to.host if tls else None)
        )
        try:
            await asyncio.wait({opening}, timeout=timeout_seconds)
            if opening.done():
                return cls(*opening.result())
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            opening.cancel()
            raise
        opening.add_done_callback(_close_unused)
        opening.cancel()
        raise OSError(f"no connection within {timeout_seconds:g} s")

    async def read(self, timeout_seconds: float) -> bytes:
        """What has come; empty at the end. Raises OSError."""
        timer = self._expire_after(timeout_seconds)
        try:
            piece = await self._reader.read(READ_BYTES)
        finally:
            timer.cancel()
        if not piece:
            self._raise_if_timed_out(timeout_seconds)
        return piece

    async def write(self, piece: bytes, timeout_seconds: float) -> None:
        """Raises OSError."""
        timer = self._expire_after(timeout_seconds)
        try:
            self._writer.write(piece)
            await self._writer.drain()
        except OSError:
            self._raise_if_timed_out(timeout_seconds)
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        self._writer.transport.abort()

    def _expire_after(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timed_out = True
        self.close()

    def _raise_if_timed_out(self, timeout_seconds: float) -> None:
        if self._timed_out:
            raise OSError(f"nothing came for {timeout_seconds:g} s")


def _close_unused(opening: asyncio.Future[Any]) -> None:
    """A connection that came after its timeout or cancellation."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].transport.abort()


async def beside(side: Callable[[], Awaitable[Any]], main: Callable[[], Awaitable[Result]]) -> Result:
    """Runs both at the same time, and returns the result of `main`, which must make `side` end."""
    task = asyncio.ensure_future(side())
    try:
        result = await main()
    except BaseException:
        task.cancel()
        await asyncio.wait({task})
        raise
    await task
    return result
