"""
Sends a request, and repeats it if that is safe: idempotent methods, and requests with an Idempotency-Key. Every
operation that accepts such a key gets one.
"""
from __future__ import annotations

import json
import ssl
import uuid
from typing import Any, Callable, Dict, Mapping, Optional, TypeVar, cast

from .._http import Head, read_url, target_of
from .._operation import Operation
from .._retry import wait_before_repeating
from .._version import VERSION
from ..errors import BerthConnectionError, BerthError
from ._connection import Body, Response, exchange
from ._network import sleep

T = TypeVar("T")
Names = Mapping[str, str]
OnEtag = Optional[Callable[[str], None]]

#: The server holds an answer for a minute at most.
SILENCE_SECONDS = 300.0
_SUDO_COOKIE = "__Secure-berth_sudo="


class Transport:
    def __init__(
        self,
        url: str,
        token: Optional[str],
        org: Optional[str],
        retries: int,
        user_agent: Optional[str],
        tls: Optional[ssl.SSLContext],
    ) -> None:
        self.url = url.rstrip("/")
        self._address = read_url(self.url)
        self._tls = (tls or ssl.create_default_context()) if self._address.is_tls else None
        self._token = token
        self._org = org
        self._retries = retries
        self._user_agent = user_agent or f"berth-python/{VERSION}"
        #: The sudo grant of this session, as a Cookie header.
        self.sudo_cookie: Optional[str] = None

    async def call(
        self,
        operation: Operation[T],
        path: Names = {},
        query: Mapping[str, Any] = {},
        body: Any = None,
        *,
        idempotency_key: Optional[str] = None,
        if_match: Optional[str] = None,
        on_etag: OnEtag = None,
        headers: Names = {},
    ) -> T:
        """Bytes as the body are sent as they are. Raises BerthError, BerthConnectionError."""
        headers = dict(headers)
        if operation.takes_idempotency_key:
            headers["idempotency-key"] = idempotency_key or str(uuid.uuid4())
        if if_match is not None:
            headers["if-match"] = if_match
        retries = self._retries if operation.repeatable else 0
        content: Optional[bytes] = None
        if isinstance(body, bytes):
            content = body
            headers["content-type"] = "application/octet-stream"
        elif body is not None:
            content = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        attempt = 0
        while True:
            try:
                return await self._attempt(operation, path, query, content, headers, on_etag)
            except (BerthError, BerthConnectionError) as error:
                wait_seconds = wait_before_repeating(error, attempt) if attempt < retries else None
                if wait_seconds is None:
                    raise
            await sleep(wait_seconds)
            attempt += 1

    async def send(
        self,
        operation: Operation[Any],
        path: Names = {},
        query: Mapping[str, Any] = {},
        body: Body = None,
        *,
        headers: Mapping[str, str] = {},
        silence_seconds: float = SILENCE_SECONDS,
    ) -> Response:
        """One attempt; returns the successful answer, which the caller closes. Raises BerthError, BerthConnectionError."""
        target = target_of(operation.path, path, query)
        fields = {**self._headers(), **headers}
        response = await exchange(
            self._address, self._tls, operation.method, target, fields, body, silence_seconds
        )
        if 200 <= response.head.status < 300:
            return response
        try:
            text = await response.read_all()
        except BerthConnectionError:
            text = b""
        finally:
            response.close()
        raise error_of(response.head, text, self.url)

    async def _attempt(
        self,
        operation: Operation[T],
        path: Names,
        query: Mapping[str, Any],
        content: Optional[bytes],
        headers: Mapping[str, str],
        on_etag: OnEtag,
    ) -> T:
        response = await self.send(operation, path, query, content, headers=headers)
        try:
            text = await response.read_all()
        finally:
            response.close()
        head = response.head
        self._remember_sudo(head)
        etag = head.get("etag")
        if etag is not None and on_etag is not None:
            on_etag(etag)
        return cast(T, answer_of(operation, head, text, self.url))

    def _headers(self) -> Dict[str, str]:
        fields = {"user-agent": self._user_agent}
        if self._token:
            fields["authorization"] = f"Bearer {self._token}"
        if self._org is not None:
            fields["berth-org"] = self._org
        if self.sudo_cookie is not None:
            fields["cookie"] = self.sudo_cookie
        return fields

    def _remember_sudo(self, head: Head) -> None:
        for cookie in head.get_all("set-cookie"):
            if cookie.startswith(_SUDO_COOKIE):
                self.sudo_cookie = cookie.split(";")[0]


def answer_of(operation: Operation[Any], head: Head, text: bytes, url: str) -> Any:
    if operation.answer == "bytes":
        return text
    if operation.answer == "text":
        return text.decode("utf-8", "replace")
    return json_of(head, text, url) if text else None


def json_of(head: Head, text: bytes, url: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise unexpected(head, url) from None


def error_of(head: Head, text: bytes, url: str) -> BerthError:
    try:
        error = json.loads(text)["error"]
        code, message, request_id = str(error["code"]), str(error["message"]), error.get("request_id")
        details = error.get("details") or []
    except (ValueError, TypeError, KeyError, AttributeError):
        return unexpected(head, url)
    after = head.get("retry-after") or ""
    return BerthError(
        message,
        status=head.status,
        code=code,
        request_id=request_id,
        details=details,
        retry_after_seconds=float(after) if after.isdigit() else None,
    )


def unexpected(head: Head, url: str) -> BerthError:
    return BerthError(
        f"{url} answered {head.status}, and not as Berth does.",
        status=head.status,
        code="UNEXPECTED",
        request_id=head.get("x-request-id"),
    )
