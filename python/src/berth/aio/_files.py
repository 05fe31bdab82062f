"""Files in a guest, as root. They need a running VM."""
from __future__ import annotations

from ._transport import Transport


class Files:
    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self.id = id
