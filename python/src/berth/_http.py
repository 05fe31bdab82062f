"""Formats HTTP/1.1 requests, and parses answers and server-sent events. This module reads and writes no connection."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import quote, urlencode, urlsplit

from .errors import BerthConnectionError

MAX_HEAD_BYTES = 64 * 1024
_MAX_EVENT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    is_tls: bool
    #: The value of the Host header.
    authority: str
    #: Before each path; mostly empty.
    prefix: str


def read_url(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not the address of a server; it looks like https://berth.example.org")
    is_tls = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    return Address(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, authority, parts.path.rstrip("/"))


def target_of(path: str, names: Mapping[str, str], query: Mapping[str, Any]) -> str:
    """The path with its names filled in, and the query without what is None."""
    for name in _names_in(path):
        value = names.get(name, "")
        # Without a value, and with a segment that URLs remove, it would address another route.
        if value in ("", ".", ".."):
            raise TypeError(f"{path}: path {name} must be an id or a name, and is {value!r}")
        path = path.replace("{" + name + "}", quote(value, safe=""))
    given = [
        (name, _query_value(each))
        for name, value in query.items()
        for each in (value if isinstance(value, list) else [value])
        if each is not None
    ]
    return path + ("?" + urlencode(given, quote_via=quote) if given else "")


def _names_in(path: str) -> List[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _query_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, (str, bytes)) else str(value)


def request_head(method: str, target: str, fields: Mapping[str, str]) -> bytes:
    for name, value in fields.items():
        if any(character in value for character in "\r\n\0"):
            raise ValueError(f"the header {name} contains a control character")
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass(frozen=True)
class Head:
    status: int
    #: In the order of their arrival, names in lower case.
    fields: List[Tuple[str, str]]

    def get(self, name: str) -> Optional[str]:
        return next((value for key, value in self.fields if key == name), None)

    def get_all(self, name: str) -> List[str]:
        return [value for key, value in self.fields if key == name]

    @property
    def is_final(self) -> bool:
        return self.status >= 200


def read_head(text: bytes) -> Head:
    first, *lines = text.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BerthConnectionError("the answer is not HTTP")
    fields = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BerthConnectionError("the answer is not HTTP")
        fields.append((name.lower(), value.strip()))
    return Head(int(rest[:3]), fields)


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    id: Optional[str]
    #: `reset`: events were missed; read the list again.
    event: str
    #: The text, which is JSON or base64.
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class EventParser:
    """Bytes become server-sent events (HTML Living Standard, section 9.2)."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> List[Frame]:
        # Our server ends lines by LF alone, and JSON has no line ends.
        *parts, self._held = (self._held + piece.replace(b"\r\n", b"\n")).split(b"\n\n")
        if len(self._held) > _MAX_EVENT_BYTES:
            raise BerthConnectionError("an event without end")
        frames = (_frame(part.decode("utf-8", "replace")) for part in parts)
        return [frame for frame in frames if frame is not None]


def _frame(text: str) -> Optional[Frame]:
    fields: Dict[str, str] = {"event": "message"}
    data: List[str] = []
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "data" and colon:
            data.append(value)
        elif colon:
            fields[name] = value
    return Frame(fields.get("id"), fields["event"], "\n".join(data)) if data else None
