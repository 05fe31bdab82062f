"""Small types that both shapes share."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional, Sequence, Union

from . import types

WaitedState = Literal["running", "stopped", "suspended"]
#: A line for `sh -c`, or a program and its arguments.
Command = Union[str, Sequence[str]]


def words_of(command: Command) -> Sequence[str]:
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


@dataclass(frozen=True)
class ExecOutput:
    """A piece of output."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    #: Of its first byte, among both streams' bytes in the order of their arrival.
    offset: int


@dataclass(frozen=True)
class ExecResult:
    """A command that has ended."""

    exec: types.Exec
    stdout_bytes: bytes
    stderr_bytes: bytes

    @property
    def stdout(self) -> str:
        """As UTF-8; other bytes become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """As UTF-8; other bytes become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def exit_code(self) -> Optional[int]:
        """None: a signal ended it, or the boot did."""
        return self.exec["exit_code"]
