"""Defines the errors that the client raises. A program reads `code`; the message is for people."""
from __future__ import annotations

from typing import Any, Dict, List, Optional


class BerthError(Exception):
    """The server refused the call or failed. The code `UNEXPECTED`: the answer is not from Berth's API."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        request_id: Optional[str],
        details: Optional[List[Dict[str, Any]]] = None,
        retry_after_seconds: Optional[float] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        #: Quote it when you ask for help. The server's log contains it.
        self.request_id = request_id
        #: The fields that are wrong: `field` and `issue` of each.
        self.details = details or []
        self.retry_after_seconds = retry_after_seconds


class BerthConnectionError(Exception):
    """No answer came: the server is not reachable, or the connection broke."""


class VmWaitError(Exception):
    """A VM did not reach the awaited state: it failed, was stopped, or the wait timed out."""

    def __init__(self, message: str, vm: Any) -> None:
        super().__init__(message)
        #: The VM as last seen.
        self.vm = vm


class OutputLostError(Exception):
    """A part of an exec's output is no longer kept: it was read too late, or too slowly. `output` can read on from `offset`."""

    def __init__(self, lost_bytes: int, offset: int) -> None:
        super().__init__(
            f"{lost_bytes} bytes of the output, from offset {offset - lost_bytes} on, are no longer kept."
            f" Read on from offset {offset}."
        )
        self.lost_bytes = lost_bytes
        #: Of the first byte that is kept.
        self.offset = offset


class WebhookVerificationError(Exception):
    """The webhook's signature or time is not valid. Do not trust it."""
