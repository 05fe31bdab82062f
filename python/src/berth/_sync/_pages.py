# Written by `npm run openapi`; do not change by hand.
"""Lists: each page is fetched when it is needed."""
from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, TypeVar

from .._operation import ListOperation
from ._transport import Names, Transport

Item = TypeVar("Item")


def items_of(
    transport: Transport,
    operation: ListOperation[Any, Item],
    path: Names = {},
    query: Mapping[str, Any] = {},
) -> Iterator[Item]:
    cursor: Optional[str] = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = transport.call(operation, path, {**query, **more})
        for item in page["data"]:
            yield item
        cursor = page["next_cursor"]
        if cursor is None:
            return
