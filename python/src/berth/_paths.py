"""Paths of a guest: bytes, which the API shows percent-encoded."""
from __future__ import annotations

from typing import Union
from urllib.parse import quote, unquote_to_bytes

Path = Union[str, bytes]


def path_bytes(path: Path) -> bytes:
    return path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")


def encode_path(path: Path) -> str:
    """As the API has it in JSON."""
    return quote(path_bytes(path), safe="/")


def decode_path(path: str) -> str:
    """As text. Bytes that are not UTF-8 are as in `os.fsdecode`."""
    return unquote_to_bytes(path).decode("utf-8", "surrogateescape")
