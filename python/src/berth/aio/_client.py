"""The client: calls any operation by its name, reads lists and streams, and has shortcuts for common operations."""
from __future__ import annotations

import os
import ssl
from typing import Any, AsyncIterator, Callable, Mapping, Optional, Tuple, TypeVar, cast

from .. import operations, types
from .._http import Frame
from .._operation import ListOperation, Operation
from ._files import Files
from ._instances import Instances
from ._pages import items_of
from ._streams import follow
from ._transport import Names, OnEtag, Transport
from ._vms import Vm

T = TypeVar("T")
Item = TypeVar("Item")

LOCAL_URL = "http://127.0.0.1:7400"


class Berth:
    """
    A client of one server. It holds no connection, works from any thread and event loop, and needs no end.

    `token`: an API key or a session token. `org`: the organisation that a session acts in. `retries`: of a call that is safe
    to repeat. `tls`: which certificates to trust, if not those of the system.
    """

    def __init__(
        self,
        url: str,
        token: Optional[str] = None,
        *,
        org: Optional[str] = None,
        retries: int = 4,
        user_agent: Optional[str] = None,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._transport = Transport(url, token, org, retries, user_agent, tls)
        self.instances = Instances(self._transport)

    @classmethod
    def from_env(cls) -> Berth:
        """Of BERTH_URL (else this machine's server) and BERTH_API_KEY."""
        return cls(os.environ.get("BERTH_URL") or LOCAL_URL, os.environ.get("BERTH_API_KEY") or None)

    @classmethod
    async def login(
        cls, url: str, credentials: types.LoginRequest, *, org: Optional[str] = None
    ) -> Tuple[Berth, types.SessionResponse]:
        """Opens a session, and returns a client that uses it."""
        session = await cls(url).call(operations.login, body=credentials)
        return cls(url, session["session_token"], org=org), session

    @property
    def url(self) -> str:
        return self._transport.url

    async def call(
        self,
        operation: Operation[T],
        *,
        path: Names = {},
        query: Mapping[str, Any] = {},
        body: Any = None,
        idempotency_key: Optional[str] = None,
        if_match: Optional[str] = None,
        on_etag: OnEtag = None,
    ) -> T:
        """
        Any operation of the API, from `berth.operations`. Raises BerthError, BerthConnectionError.

        `idempotency_key`: by default a new key for each call; your own makes a call safe to repeat after a restart of your program.
        `if_match`: an ETag; the call fails with PRECONDITION_FAILED if the resource has changed. `on_etag` gets the answer's ETag.
        """
        return await self._transport.call(
            operation, path, query, body, idempotency_key=idempotency_key, if_match=if_match, on_etag=on_etag
        )

    def list(
        self, operation: ListOperation[Any, Item], *, path: Names = {}, query: Mapping[str, Any] = {}
    ) -> AsyncIterator[Item]:
        """All items of a list. Fetches each page when it is needed. `limit` in the query is the page size."""
        return items_of(self._transport, operation, path, query)

    def vm(self, id: str) -> Vm:
        """The VM of an instance, whose id this is."""
        return Vm(self._transport, id)

    def files(self, id: str) -> Files:
        """Files of the guest of a running VM. `id` is the instance's."""
        return Files(self._transport, id)

    async def sudo(self, password: str) -> Tuple[types.SudoGrantResponse, str]:
        """Allows this session the actions that need a recent password, for five minutes. Returns also the grant's cookie."""
        grant = await self.call(operations.grant_sudo, body={"password": password})
        return grant, self._transport.sudo_cookie or ""

    def use_sudo(self, cookie: str) -> None:
        """Continues with a grant from `sudo`."""
        self._transport.sudo_cookie = cookie

    async def events(
        self,
        query: Mapping[str, Any] = {},
        *,
        last_event_id: Optional[str] = None,
        on_open: Optional[Callable[[], None]] = None,
        on_reset: Optional[Callable[[], None]] = None,
    ) -> AsyncIterator[types.Event]:
        """The organisation's events, live. Resumes without loss after a disconnect. If events were lost, calls `on_reset`."""
        last = last_event_id
        if last is None:
            # Starts after the newest event, so that a disconnect before the first event loses nothing either.
            newest = (await self.call(operations.list_events, query={"limit": 1}))["data"]
            last = newest[0]["id"] if newest else None
        async for frame in follow(self._transport, operations.stream_events, query, last, on_open):
            if frame.event != "reset":
                yield cast(types.Event, frame.data)
            elif on_reset is not None:
                on_reset()

    def notifications(
        self, *, last_event_id: Optional[str] = None, on_open: Optional[Callable[[], None]] = None
    ) -> AsyncIterator[Frame]:
        """`notification` with a notification, `unread` with the count, `reset` if some were missed."""
        return follow(self._transport, operations.stream_notifications, {}, last_event_id, on_open)

    async def create_api_key(
        self, body: types.CreateApiKeyRequest, *, idempotency_key: Optional[str] = None
    ) -> types.CreateApiKeyResponse:
        return await self.call(operations.create_api_key, body=body, idempotency_key=idempotency_key)

    async def create_webhook(
        self, body: types.CreateWebhookRequest, *, idempotency_key: Optional[str] = None
    ) -> types.CreateWebhookResponse:
        return await self.call(operations.create_webhook, body=body, idempotency_key=idempotency_key)
