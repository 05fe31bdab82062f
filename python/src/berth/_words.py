"""Small types and functions that the asynchronous and the blocking client share: commands and their results."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Optional, Sequence, Union

from . import types
from .errors import BerthError, OutputLostError

WaitedState = Literal["running", "stopped", "suspended"]
#: A line for `sh -c`, or a program and its arguments.
Command = Union[str, Sequence[str]]


def words_of(command: Command) -> Sequence[str]:
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def lost_output(error: Exception) -> Optional[OutputLostError]:
    """What a 409 says of output that is no longer kept. None: it is another error."""
    if not isinstance(error, BerthError) or error.code != "CONFLICT":
        return None
    for detail in error.details:
        found = re.fullmatch(r"lost (\d+), first kept (\d+)", str(detail.get("issue")))
        if found and detail.get("field") == "offset":
            return OutputLostError(int(found.group(1)), int(found.group(2)))
    return None


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
