"""The handle of an instance's VM, and waits until a VM has a state."""
from __future__ import annotations

import math
import time
from types import TracebackType
from typing import Callable, Dict, Optional, Type

from .. import operations, types
from .._words import WaitedState
from ..errors import BerthError, VmWaitError
from ._commands import Commands
from ._files import Files
from ._network import sleep
from ._transport import Transport

OnVm = Optional[Callable[[types.Vm], None]]

WAIT_SECONDS = 600.0
#: How long the server may delay an answer; its maximum is a minute.
_HELD_SECONDS = 30
_TOLD_SECONDS = 5
_DELETED_EVERY_SECONDS = 0.5


async def wait_for_vm(
    transport: Transport,
    id: str,
    state: WaitedState,
    *,
    begun: bool = False,
    timeout_seconds: float = WAIT_SECONDS,
    on_vm: OnVm = None,
) -> types.Vm:
    """
    Waits until the VM is in `state`. Raises VmWaitError when it failed, was stopped meanwhile, or at the timeout.

    `begun`: a start was requested just now, so a state of stopped or suspended means that another caller stopped the VM.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = math.ceil(deadline - time.monotonic())
        held = max(1, min(_HELD_SECONDS if on_vm is None else _TOLD_SECONDS, left))
        query = {"wait": state, "timeout_seconds": held}
        vm = await transport.call(operations.get_vm, {"id": id}, query)
        if on_vm is not None:
            on_vm(vm)
        if vm["state"] == state:
            return vm
        reason = vm["reason"]
        why = "" if reason is None else f": {reason['message']} ({reason['code']})"
        if vm["state"] == "failed":
            raise VmWaitError(f"the VM has failed{why}", vm)
        runs_on = vm["state"] == "running" and reason is not None and reason["code"] == "suspend_failed"
        # It will no longer reach that state by itself.
        if state == "suspended" and runs_on:
            raise VmWaitError(f"the VM runs on{why}", vm)
        not_resumed = vm["state"] == "suspended" and reason is not None and reason["code"] == "resume_failed"
        if state == "running" and not_resumed:
            raise VmWaitError(f"the VM is suspended again{why}", vm)
        if begun and state == "running" and vm["state"] in ("stopped", "suspended"):
            raise VmWaitError(f"the VM is {vm['state']}: it was stopped meanwhile{why}", vm)
        if time.monotonic() >= deadline:
            raise VmWaitError(f"the VM is still {vm['state']} after {round(timeout_seconds)} s{why}", vm)


async def wait_until_deleted(
    transport: Transport, id: str, *, timeout_seconds: float = WAIT_SECONDS, on_vm: OnVm = None
) -> None:
    """Waits until the instance and all its objects are deleted."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            instance = await transport.call(operations.get_instance, {"id": id})
        except BerthError as error:
            if error.code == "NOT_FOUND":
                return
            raise
        if on_vm is not None:
            on_vm(instance["vm"])
        if time.monotonic() >= deadline:
            raise VmWaitError(f"the instance is still there after {round(timeout_seconds)} s", instance["vm"])
        await sleep(_DELETED_EVERY_SECONDS)


class Vm(Commands):
    """The VM of one instance. `id` is the instance's."""

    def __init__(self, transport: Transport, id: str) -> None:
        super().__init__(transport, id)
        self.files = Files(transport, id)

    @property
    def _path(self) -> Dict[str, str]:
        return {"id": self.id}

    async def get(self) -> types.Vm:
        return await self._transport.call(operations.get_vm, self._path)

    async def start(self, *, timeout_seconds: float = WAIT_SECONDS, on_vm: OnVm = None) -> RunningVm:
        """Starts the VM, and waits until SSH works. The end of a `with` block stops and saves it."""
        await self._transport.call(operations.start_vm, self._path)
        vm = await wait_for_vm(
            self._transport, self.id, "running", begun=True, timeout_seconds=timeout_seconds, on_vm=on_vm
        )
        return RunningVm(self._transport, self.id, vm)

    async def stop(
        self, *, force: bool = False, timeout_seconds: float = WAIT_SECONDS, on_vm: OnVm = None
    ) -> types.Vm:
        """Stops the VM, and waits until all its writes are in object storage."""
        await self._transport.call(operations.stop_vm, self._path, {"force": True if force else None})
        return await self._wait("stopped", timeout_seconds, on_vm)

    async def suspend(self, *, timeout_seconds: float = WAIT_SECONDS, on_vm: OnVm = None) -> types.Vm:
        """Saves memory and disk together and waits until both are in object storage; `start` continues from there."""
        await self._transport.call(operations.suspend_vm, self._path)
        return await self._wait("suspended", timeout_seconds, on_vm)

    async def restart(self, *, timeout_seconds: float = WAIT_SECONDS, on_vm: OnVm = None) -> types.Vm:
        await self._transport.call(operations.restart_vm, self._path)
        return await wait_for_vm(
            self._transport, self.id, "running", begun=True, timeout_seconds=timeout_seconds, on_vm=on_vm
        )

    async def flush(self, *, idempotency_key: Optional[str] = None) -> types.FlushReceipt:
        """Makes every write of the guest up to now durable."""
        return await self._transport.call(
            operations.flush_vm, self._path, idempotency_key=idempotency_key
        )

    async def ssh(self) -> types.ConnectionDetails:
        return await self._transport.call(operations.get_ssh, self._path)

    async def _wait(self, state: WaitedState, timeout_seconds: float, on_vm: OnVm) -> types.Vm:
        return await wait_for_vm(
            self._transport, self.id, state, timeout_seconds=timeout_seconds, on_vm=on_vm
        )


class RunningVm(Vm):
    def __init__(self, transport: Transport, id: str, vm: types.Vm) -> None:
        super().__init__(transport, id)
        #: The VM as of its start.
        self.vm = vm

    async def __aenter__(self) -> RunningVm:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.stop()
