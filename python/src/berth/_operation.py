"""What an operation of the API is. The operations themselves are in `berth.operations`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Operation(Generic[T]):
    """T is the type of its answer."""

    method: str
    path: str
    takes_idempotency_key: bool = False
    answer: Literal["json", "text", "bytes", "nothing"] = "json"

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice does no more than sending it once."""
        return self.takes_idempotency_key or self.method in ("GET", "PUT", "DELETE")


class ListOperation(Operation[T], Generic[T, Item]):
    """Its answer is a page of a list."""
