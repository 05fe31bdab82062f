"""Decides which failed attempts are repeated, and after how long. Waits grow with full jitter; Retry-After is added."""
from __future__ import annotations

import random
from typing import Optional

from .errors import BerthConnectionError, BerthError

_BACKOFF_BASE_SECONDS = 0.25
_BACKOFF_CAP_SECONDS = 8.0
#: If Retry-After is longer, the call fails and the caller must wait.
_MAX_RETRY_AFTER_SECONDS = 30.0
_REPEATED_CODES = ("RATE_LIMITED", "UNAVAILABLE", "IDEMPOTENCY_IN_PROGRESS")
_TRANSIENT_CODES = ("RATE_LIMITED", "UNAVAILABLE", "INTERNAL", "UNEXPECTED")


def backoff_seconds(attempt: int) -> float:
    """`attempt` counts from 0."""
    return random.random() * min(_BACKOFF_CAP_SECONDS, _BACKOFF_BASE_SECONDS * 2.0**attempt)


def wait_before_repeating(error: Exception, attempt: int) -> Optional[float]:
    """None: do not repeat."""
    if isinstance(error, BerthConnectionError):
        return backoff_seconds(attempt)
    if not isinstance(error, BerthError) or error.code not in _REPEATED_CODES:
        return None
    asked = error.retry_after_seconds or 0.0
    return None if asked > _MAX_RETRY_AFTER_SECONDS else asked + backoff_seconds(attempt)


def ends_a_stream(error: Exception) -> bool:
    """Whether a stream gives up, rather than connect again."""
    if isinstance(error, BerthConnectionError):
        return False
    return not (isinstance(error, BerthError) and error.status >= 429 and error.code in _TRANSIENT_CODES)
