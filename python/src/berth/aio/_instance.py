"""`Instance`: an instance together with its client, for programs that use one machine."""
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

    async def fork(self, name: str, **settings: Any) -> Instance:
        """A new instance with the disk of this one, as of its last flush or of `generation`."""
        body = cast(types.ForkRequest, {"name": name, **settings})
        return Instance(self.client, await self.client.instances.fork(self.id, body))

    async def restore(self, generation: int) -> None:
        """Sets the disk back to a generation, as a new one. The VM must be stopped."""
        self.data = await self.client.instances.restore(self.id, generation)

    async def delete(self) -> None:
        """Deletes the instance with its disk, and waits for the end of that."""
        await self.client.instances.delete(self.id)
        await self.client.instances.wait_until_deleted(self.id)

    async def __aenter__(self) -> RunningVm:
        return await self.vm.start()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.vm.stop()
