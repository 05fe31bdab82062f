"""Lists: each page is fetched when it is needed."""
from __future__ import annotations

from typing import Any, AsyncIterator, Mapping, Optional, TypeVar

from .._operation import ListOperation
from ._transport import Names, Transport

Item = TypeVar("Item")


async def items_of(
    transport: Transport,
    operation: ListOperation[Any, Item],
    path: Names = {},
    query: Mapping[str, Any] = {},
) -> AsyncIterator[Item]:
    cursor: Optional[str] = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = await transport.call(operation, path, {**query, **more})
        for item in page["data"]:
            yield item
        cursor = page["next_cursor"]
        if cursor is None:
            return
