"""An instance and its client in one value, for programs that use one machine."""
from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Type, cast

from .. import types
from ._client import Berth
from ._vms import WAIT_SECONDS, RunningVm


class Instance:
    """As the value of a `with` statement, its VM runs: started at the beginning of the block, stopped and saved at its end."""

    def __init__(self, client: Berth, data: types.Instance) -> None:
        self.client = client
        #: The instance as the API showed it.
        self.data = data
        self.id = data["id"]
        self.name = data["name"]
        self.vm = client.vm(self.id)

    @classmethod
    async def get_or_create(cls, name: str, *, client: Optional[Berth] = None, **settings: Any) -> Instance:
        """
        The instance of this name, as it is; else a new one with these settings, such as `memory_mib=1024`. Without a client,
        `Berth.from_env()`.
        """
        using = client or Berth.from_env()
        body = cast(types.CreateInstanceRequest, {"name": name, **settings})
        return cls(using, await using.instances.get_or_create(body))

    async def start(self, *, timeout_seconds: float = WAIT_SECONDS) -> RunningVm:
        """Starts the VM, and waits until SSH works."""
        return await self.vm.start(timeout_seconds=timeout_seconds)

    async def __aenter__(self) -> RunningVm:
        return await self.vm.start()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.vm.stop()
