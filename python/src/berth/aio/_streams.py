"""
Reads server-sent events. When the connection breaks, a stream reconnects and resumes after the last event that it
received. It ends with an error when its credential is no longer valid.
"""
from __future__ import annotations

from typing import Any, AsyncIterator, Callable, Mapping, Optional

from .._http import EventParser, Frame
from .._operation import Operation
from .._retry import backoff_seconds, ends_a_stream
from ..errors import BerthConnectionError, BerthError
from ._connection import Response
from ._network import sleep
from ._transport import Names, Transport

#: The server sends a comment every 15 s: this long nothing at all is a dead connection.
SILENCE_SECONDS = 45.0
_MAX_DOUBLINGS = 5


async def follow(
    transport: Transport,
    operation: Operation[str],
    query: Mapping[str, Any],
    last_event_id: Optional[str],
    on_open: Optional[Callable[[], None]],
) -> AsyncIterator[Frame]:
    last = last_event_id
    failures = 0
    while True:
        try:
            headers = {} if last is None else {"last-event-id": last}
            response = await open_events(transport, operation, {}, query, headers)
            try:
                if on_open is not None:
                    on_open()
                async for frame in frames_of(response):
                    failures = 0
                    last = frame.id or last
                    yield frame
            finally:
                response.close()
        except (BerthError, BerthConnectionError) as error:
            if ends_a_stream(error):
                raise
        await sleep(backoff_seconds(min(failures, _MAX_DOUBLINGS)))
        failures += 1


async def open_events(
    transport: Transport,
    operation: Operation[Any],
    path: Names,
    query: Mapping[str, Any],
    headers: Mapping[str, str] = {},
) -> Response:
    fields = {"accept": "text/event-stream", **headers}
    return await transport.send(operation, path, query, headers=fields, silence_seconds=SILENCE_SECONDS)


async def frames_of(response: Response) -> AsyncIterator[Frame]:
    """Raises BerthError when the credential or what is read has gone, BerthConnectionError."""
    parser = EventParser()
    while True:
        piece = await response.read()
        if not piece:
            return
        for frame in parser.feed(piece):
            if frame.event == "end":
                raise _end_of(frame)
            yield frame


def _end_of(frame: Frame) -> BerthError:
    data = frame.data or {}
    reason = data.get("error", data)
    code = reason.get("code", "UNAUTHENTICATED")
    return BerthError(
        reason.get("message", "The stream has ended with its credential."),
        status={"FORBIDDEN": 403, "NOT_FOUND": 404}.get(code, 401),
        code=code,
        request_id=reason.get("request_id"),
    )
