"""Verifies that a webhook comes from Berth, by the Standard Webhooks specification, version 1."""
from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from typing import Any, Callable, List, Mapping, Optional, Protocol, Sequence, TypedDict, Union, cast

from .errors import WebhookVerificationError

_MAX_SIGNATURES = 16
_MIN_SECRET_BYTES = 16


class Headers(Protocol):
    """A dict, or the headers of a framework."""

    def get(self, name: str, /) -> Any: ...


class WebhookMessage(TypedDict):
    id: str
    """The same at every attempt. Store the ids of processed messages, to recognise repeated ones."""
    type: str
    timestamp: str
    data: Any
    """The resource that it is about."""


def verify_webhook(
    secrets: Union[str, Sequence[str]],
    headers: Headers,
    body: Union[str, bytes],
    *,
    tolerance_seconds: float = 300,
    now: Callable[[], float] = time.time,
) -> WebhookMessage:
    """
    Returns the message if its signature matches one of the secrets (`whsec_…`; several while one is being replaced).

    `body` is the received bytes, unchanged: parsing and serialising could change them. `tolerance_seconds` is how far
    the message's time may be from `now`. Raises WebhookVerificationError.
    """
    message_id = _header(headers, "webhook-id")
    timestamp = _header(headers, "webhook-timestamp")
    signatures = _header(headers, "webhook-signature")
    if not re.fullmatch(r"[0-9]{1,15}", timestamp):
        raise WebhookVerificationError("webhook-timestamp is not a time")
    age_seconds = abs(now() - int(timestamp))
    if age_seconds > tolerance_seconds:
        raise WebhookVerificationError(f"the message is {round(age_seconds)} s away from now")
    content = body.encode() if isinstance(body, str) else bytes(body)
    signed = f"{message_id}.{timestamp}.".encode() + content
    for secret in [secrets] if isinstance(secrets, str) else secrets:
        expected = hmac.new(_key(secret), signed, hashlib.sha256).digest()
        for given in _signatures(signatures):
            if hmac.compare_digest(expected, given):
                return cast(WebhookMessage, {**json.loads(content), "id": message_id})
    raise WebhookVerificationError("no signature fits")


def _signatures(header: str) -> List[bytes]:
    decoded = (_decoded(each[3:]) for each in header.split(" ")[:_MAX_SIGNATURES] if each.startswith("v1,"))
    return [each for each in decoded if each is not None]


def _key(secret: str) -> bytes:
    key = _decoded(secret[6:] if secret.startswith("whsec_") else secret)
    if key is None or len(key) < _MIN_SECRET_BYTES:
        raise ValueError("a secret looks like whsec_…")
    return key


def _header(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if value is None and isinstance(headers, Mapping):
        # A framework ignores the case of names; a dict does not.
        value = next((each for key, each in headers.items() if str(key).lower() == name), None)
    if not isinstance(value, str) or not value:
        raise WebhookVerificationError(f"{name} is missing")
    return value


def _decoded(text: str) -> Optional[bytes]:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
