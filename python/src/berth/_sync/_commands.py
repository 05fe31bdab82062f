# Written by `npm run openapi`; do not change by hand.
"""
Runs commands in a guest, as execs. An exec continues when its reader disconnects, so `ExecHandle` resumes reading at
the byte that it has reached.
"""
from __future__ import annotations

import base64
from typing import Iterator, Dict, List, Mapping, Optional, Union, cast

from .. import operations, types
from .._retry import backoff_seconds, ends_a_stream
from .._words import Command, ExecOutput, ExecResult, lost_output, words_of
from ..errors import BerthConnectionError, BerthError, OutputLostError
from ._network import beside, sleep
from ._pages import items_of
from ._streams import frames_of, open_events
from ._transport import Transport

#: Of one request; the server takes a mebibyte.
_INPUT_BYTES = 256 * 1024
#: Failures in a row before reading gives up: some minutes.
_MAX_FAILURES = 40


class ExecHandle:
    """A command that runs, or has run."""

    def __init__(self, transport: Transport, exec: types.Exec) -> None:
        self._transport = transport
        #: The exec as last seen.
        self.exec = exec
        self.id = exec["id"]
        #: How much of the output has been read: where `output` continues.
        self.offset = 0
        self._path = {"id": exec["instance_id"], "exec_id": exec["id"]}

    def output(self, offset: Optional[int] = None) -> Iterator[ExecOutput]:
        """
        Its output as it comes, to its end and without a gap, from `offset` or where the last reading stopped. Afterwards `exec` has
        the exit code. Raises OutputLostError.
        """
        self.offset = self.offset if offset is None else offset
        failures = 0
        failure: Exception = BerthConnectionError("the output ended before the command")
        while failures <= _MAX_FAILURES:
            try:
                query = {"offset": self.offset, "follow": True}
                response = open_events(
                    self._transport, operations.get_exec_output, self._path, query
                )
                try:
                    for frame in frames_of(response):
                        failures = 0
                        if frame.event == "exit":
                            self.exec = cast(types.Exec, frame.data)
                            return
                        if frame.event == "gap":
                            raise OutputLostError(frame.data["lost_bytes"], frame.data["offset"])
                        if frame.event not in ("stdout", "stderr") or frame.id is None:
                            continue
                        data = base64.b64decode(frame.text)
                        self.offset = int(frame.id)
                        yield ExecOutput(
                            "stdout" if frame.event == "stdout" else "stderr", data, self.offset - len(data)
                        )
                finally:
                    response.close()
            except (BerthError, BerthConnectionError) as error:
                if ends_a_stream(error):
                    raise lost_output(error) or error
                failure = error
            sleep(backoff_seconds(failures))
            failures += 1
        raise failure

    def wait(self) -> types.Exec:
        """Waits for its end. Drops the output that was not read before."""
        while self.exec["state"] == "running":
            try:
                for _ in self.output():
                    pass
            except OutputLostError as lost:
                self.offset = lost.offset
        return self.exec

    def collect(self) -> ExecResult:
        """Waits for its end, with all of its output. Raises OutputLostError."""
        found: Dict[str, List[bytes]] = {"stdout": [], "stderr": []}
        for piece in self.output(0):
            found[piece.stream].append(piece.data)
        return ExecResult(self.exec, b"".join(found["stdout"]), b"".join(found["stderr"]))

    def get(self) -> types.Exec:
        self.exec = self._transport.call(operations.get_exec, self._path)
        return self.exec

    def write(self, data: Union[bytes, str], *, eof: bool = False) -> None:
        """Sends input, and waits until the guest has room for more. With `eof`, the input then ends."""
        content = data.encode() if isinstance(data, str) else data
        for at in range(0, max(1, len(content)), _INPUT_BYTES):
            end = at + _INPUT_BYTES
            query = {"eof": eof and end >= len(content)}
            self._transport.call(
                operations.write_exec_input, self._path, query, content[at:end]
            )

    def close_input(self) -> None:
        self.write(b"", eof=True)

    def signal(self, signal: str) -> None:
        """Sends a signal such as `SIGTERM` to the process group."""
        self._transport.call(operations.signal_exec, self._path, body={"signal": signal})

    def resize(self, columns: int, rows: int) -> None:
        """Changes the size of its terminal."""
        self._transport.call(
            operations.resize_exec, self._path, body={"columns": columns, "rows": rows}
        )

    def kill(self) -> None:
        """Kills the process group. The exec stays in the list."""
        self._transport.call(operations.kill_exec, self._path)

    def _feed(self, input: Union[bytes, str]) -> None:
        try:
            self.write(input, eof=True)
        except (BerthError, BerthConnectionError) as error:
            # It has ended without reading all of its input, as `head` does.
            if isinstance(error, BerthError) and error.code == "CONFLICT":
                return
            # A command must not take a part of its input for all of it.
            self.kill()
            raise


class Commands:
    """The commands of one instance. `id` is the instance's."""

    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self.id = id

    def exec(
        self,
        command: Command,
        *,
        input: Union[None, bytes, str] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        timeout_seconds: Optional[int] = None,
        idempotency_key: Optional[str] = None,
    ) -> ExecResult:
        """
        Runs a command to its end and returns its output and exit code, also one that is not 0.

        A text is a line for `sh -c`; a list is a program and its arguments. At the timeout the command is killed; without one
        it has all the time it needs.
        """
        handle = self.start_exec(
            command,
            stdin=input is not None,
            env=env,
            cwd=cwd,
            user=user,
            timeout_seconds=timeout_seconds,
            idempotency_key=idempotency_key,
        )
        if input is None:
            return handle.collect()
        given = input
        return beside(lambda: handle._feed(given), handle.collect)

    def start_exec(
        self,
        command: Command,
        *,
        stdin: bool = False,
        tty: Optional[types.CreateExecRequestTty] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        user: Optional[str] = None,
        timeout_seconds: Optional[int] = None,
        idempotency_key: Optional[str] = None,
    ) -> ExecHandle:
        """Starts a command, and does not wait for it. It runs on without a reader."""
        given: Dict[str, object] = {
            "command": words_of(command),
            "stdin": stdin or None,
            "tty": tty,
            "env": None if env is None else dict(env),
            "cwd": cwd,
            "user": user,
        }
        body = {name: value for name, value in given.items() if value is not None}
        body["timeout_seconds"] = timeout_seconds
        exec = self._transport.call(
            operations.create_exec, {"id": self.id}, body=body, idempotency_key=idempotency_key
        )
        return ExecHandle(self._transport, exec)

    def attach_exec(self, exec_id: str) -> ExecHandle:
        """A handle of a command that was started before, also by another program."""
        path = {"id": self.id, "exec_id": exec_id}
        return ExecHandle(self._transport, self._transport.call(operations.get_exec, path))

    def execs(self) -> Iterator[types.Exec]:
        """All that run, and the last 100 that have ended."""
        return items_of(self._transport, operations.list_execs, {"id": self.id})
