# Written by `npm run openapi`; do not change by hand.
"""
Sends one request over a new connection, and reads the answer. No connection is kept for another request. So a client
works from any thread and event loop, need not be closed, and never uses a connection that the server is closing.
"""
from __future__ import annotations

import ssl
from typing import Iterable, List, Mapping, Optional, Union

from .._http import MAX_HEAD_BYTES, Address, Head, read_head, request_head
from ..errors import BerthConnectionError
from ._network import Network

Body = Union[None, bytes, Iterable[bytes]]
CONNECT_SECONDS = 15.0
PIECE_BYTES = 64 * 1024


def exchange(
    to: Address,
    tls: Optional[ssl.SSLContext],
    method: str,
    target: str,
    fields: Mapping[str, str],
    body: Body,
    silence_seconds: float,
) -> Response:
    """Raises BerthConnectionError."""
    try:
        network = Network.connect(to, tls, min(CONNECT_SECONDS, silence_seconds))
    except (OSError, UnicodeError) as cause:
        raise BerthConnectionError(f"{to.authority} does not answer: {cause}") from cause
    response = Response(network, silence_seconds)
    try:
        _send(network, to, method, target, fields, body, silence_seconds)
        response.begin()
    except OSError as cause:
        network.close()
        raise BerthConnectionError(f"{to.authority} does not answer: {cause}") from cause
    except BaseException:
        network.close()
        raise
    return response


def _send(
    network: Network,
    to: Address,
    method: str,
    target: str,
    given: Mapping[str, str],
    body: Body,
    silence_seconds: float,
) -> None:
    fields = {"host": to.authority, "connection": "close", **given}
    if isinstance(body, bytes):
        fields["content-length"] = str(len(body))
    elif body is not None:
        fields["transfer-encoding"] = "chunked"
    elif method in ("POST", "PUT", "PATCH"):
        fields["content-length"] = "0"
    head = request_head(method, to.prefix + target, fields)
    try:
        if body is None:
            network.write(head, silence_seconds)
        elif isinstance(body, bytes):
            network.write(head + body[:PIECE_BYTES], silence_seconds)
            for at in range(PIECE_BYTES, len(body), PIECE_BYTES):
                network.write(body[at : at + PIECE_BYTES], silence_seconds)
        else:
            network.write(head, silence_seconds)
            for piece in body:
                if piece:
                    network.write(b"%x\r\n%b\r\n" % (len(piece), piece), silence_seconds)
            network.write(b"0\r\n\r\n", silence_seconds)
    except (BrokenPipeError, ConnectionResetError):
        # The server may have refused the body before its end, and said why.
        return


class Response:
    """An answer: its head, and its body piece by piece."""

    head: Head

    def __init__(self, network: Network, silence_seconds: float) -> None:
        self._network = network
        self.silence_seconds = silence_seconds
        self._held = b""
        #: Bytes of the body, or of its present chunk, that are still to come; None: to the end of the connection.
        self._left: Optional[int] = None
        self._is_chunked = False
        self._ended = False

    def begin(self) -> None:
        """Reads the head. Raises OSError, BerthConnectionError."""
        while True:
            head = read_head(self._until(b"\r\n\r\n"))
            if head.is_final:
                break
        self.head = head
        self._is_chunked = (head.get("transfer-encoding") or "").lower() == "chunked"
        length = head.get("content-length")
        if head.status in (204, 304):
            self._ended = True
        elif self._is_chunked:
            self._left = 0
        elif length is not None and length.isdigit():
            self._left = int(length)
            self._ended = self._left == 0

    def read(self) -> bytes:
        """The next piece of the body; empty at its end. Raises BerthConnectionError."""
        try:
            return b"" if self._ended else self._piece()
        except OSError as cause:
            raise BerthConnectionError(f"the answer broke off: {cause}") from cause

    def read_all(self) -> bytes:
        pieces: List[bytes] = []
        while True:
            piece = self.read()
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)

    def close(self) -> None:
        self._network.close()

    def _piece(self) -> bytes:
        if self._is_chunked and self._left == 0:
            size = (self._until(b"\r\n")).split(b";")[0]
            try:
                self._left = int(size, 16)
            except ValueError:
                raise BerthConnectionError("the answer is not HTTP") from None
            if self._left == 0:
                self._ended = True
                return b""
        if not self._held:
            self._held = self._network.read(self.silence_seconds)
            if not self._held and self._left is None:
                self._ended = True
                return b""
        piece = self._take()
        if self._left == 0:
            if self._is_chunked:
                self._until(b"\r\n")
            else:
                self._ended = True
        return piece

    def _take(self) -> bytes:
        if not self._held:
            raise BerthConnectionError("the answer broke off")
        taken = len(self._held) if self._left is None else min(self._left, len(self._held))
        piece, self._held = self._held[:taken], self._held[taken:]
        if self._left is not None:
            self._left -= taken
        return piece

    def _until(self, end: bytes) -> bytes:
        while end not in self._held:
            if len(self._held) > MAX_HEAD_BYTES:
                raise BerthConnectionError("the answer has too long a head")
            more = self._network.read(self.silence_seconds)
            if not more:
                raise BerthConnectionError("the connection ended before the answer")
            self._held += more
        found, _, self._held = self._held.partition(end)
        return found
