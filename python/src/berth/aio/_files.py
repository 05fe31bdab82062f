"""Reads and writes files in a guest, as root. The VM must run."""
from __future__ import annotations

from typing import AsyncIterable, AsyncIterator, BinaryIO, Dict, Optional, Union, cast

from .. import operations, types
from .._paths import Path, decode_path, encode_path, path_bytes
from ._connection import PIECE_BYTES
from ._pages import items_of
from ._transport import OnEtag, Transport, json_of


class Files:
    """
    The files of one instance's guest. `id` is the instance's.

    A path is absolute: text, or bytes. In entries it is text, where bytes that are not UTF-8 are as `os.fsdecode` has them.
    """

    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self._path = {"id": id}

    async def read(
        self, path: Path, *, start: int = 0, end: Optional[int] = None, on_etag: OnEtag = None
    ) -> bytes:
        """The content, or that from the byte `start` on and before the byte `end`."""
        headers = _range(start, end)
        query = {"path": path_bytes(path)}
        return await self._transport.call(
            operations.read_file, self._path, query, headers=headers, on_etag=on_etag
        )

    async def stream(self, path: Path, *, start: int = 0, end: Optional[int] = None) -> AsyncIterator[bytes]:
        """The content in pieces, for files of any size."""
        query = {"path": path_bytes(path)}
        response = await self._transport.send(
            operations.read_file, self._path, query, headers=_range(start, end)
        )
        try:
            while True:
                piece = await response.read()
                if not piece:
                    return
                yield piece
        finally:
            response.close()

    async def write(
        self,
        path: Path,
        data: Union[str, bytes, BinaryIO, AsyncIterable[bytes]],
        *,
        mode: Optional[str] = None,
        user: Optional[str] = None,
        create: bool = False,
        if_match: Optional[str] = None,
    ) -> types.File:
        """
        Writes a file, in one step: others see the old content or the new. Makes missing folders, and keeps mode and owner of a
        file that it replaces. `mode`: octal, such as `0644`. `create` fails with PRECONDITION_FAILED if it is there.

        An open file or an iterable is streamed, and sent once: only text and bytes are sent again after a failure.
        """
        query = {"path": path_bytes(path), "mode": mode, "user": user}
        headers = {"if-none-match": "*"} if create else {}
        if isinstance(data, (str, bytes)):
            content = data.encode() if isinstance(data, str) else data
            return _entry(
                await self._transport.call(
                    operations.write_file, self._path, query, content, if_match=if_match, headers=headers
                )
            )
        headers["content-type"] = "application/octet-stream"
        if if_match is not None:
            headers["if-match"] = if_match
        pieces = _pieces_of(cast(BinaryIO, data)) if hasattr(data, "read") else data
        response = await self._transport.send(
            operations.write_file, self._path, query, pieces, headers=headers
        )
        try:
            text = await response.read_all()
            return _entry(cast(types.File, json_of(response.head, text, self._transport.url)))
        finally:
            response.close()

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        """A folder that is not empty needs `recursive`."""
        query = {"path": path_bytes(path), "recursive": True if recursive else None}
        await self._transport.call(operations.delete_file, self._path, query)

    async def list(self, path: Path) -> AsyncIterator[types.File]:
        """The entries of a folder, sorted by name."""
        query = {"path": path_bytes(path)}
        async for entry in items_of(self._transport, operations.list_files, self._path, query):
            yield _entry(entry)

    async def move(self, path: Path, to: Path) -> types.File:
        """Moves or renames, within one file system. Replaces a file that is there."""
        body = {"from": encode_path(path), "to": encode_path(to)}
        return _entry(await self._transport.call(operations.move_file, self._path, body=body))

    async def mkdir(
        self, path: Path, *, mode: Optional[str] = None, user: Optional[str] = None
    ) -> types.File:
        """Makes a folder, and the missing ones above it. One that is there is left as it is."""
        given = {"path": encode_path(path), "mode": mode, "user": user}
        body = {name: value for name, value in given.items() if value is not None}
        return _entry(await self._transport.call(operations.create_directory, self._path, body=body))


def _entry(file: types.File) -> types.File:
    file["path"] = decode_path(file["path"])
    return file


def _range(start: int, end: Optional[int]) -> Dict[str, str]:
    if start == 0 and end is None:
        return {}
    return {"range": f"bytes={start}-{'' if end is None else end - 1}"}


async def _pieces_of(file: BinaryIO) -> AsyncIterator[bytes]:
    while True:
        piece = file.read(PIECE_BYTES)
        if not piece:
            return
        yield piece
