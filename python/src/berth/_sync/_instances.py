# Written by `npm run openapi`; do not change by hand.
"""Shortcuts for the operations on instances."""
from __future__ import annotations

import re
from typing import Any, Iterator, Mapping, Optional

from .. import operations, types
from .._words import WaitedState
from ..errors import BerthError
from ._pages import items_of
from ._transport import OnEtag, Transport
from ._vms import WAIT_SECONDS, OnVm, wait_for_vm, wait_until_deleted

_ID = re.compile(r"inst_[0-9a-z]{26}")


class Instances:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self, body: types.CreateInstanceRequest, *, idempotency_key: Optional[str] = None
    ) -> types.Instance:
        """Safe to repeat, because it sends an Idempotency-Key."""
        return self._transport.call(
            operations.create_instance, body=body, idempotency_key=idempotency_key
        )

    def get(self, id: str, *, on_etag: OnEtag = None) -> types.Instance:
        return self._transport.call(operations.get_instance, {"id": id}, on_etag=on_etag)

    def find(self, id_or_name: str) -> types.Instance:
        """Finds an instance by id or name. Raises BerthError with the code NOT_FOUND."""
        if _ID.fullmatch(id_or_name):
            return self.get(id_or_name)
        page = self._transport.call(operations.list_instances, query={"name": id_or_name})
        for instance in page["data"]:
            if instance["name"] == id_or_name:
                return instance
        raise BerthError(
            f"There is no instance called {id_or_name}.", status=404, code="NOT_FOUND", request_id=None
        )

    def get_or_create(self, body: types.CreateInstanceRequest) -> types.Instance:
        """The instance of this name, as it is; else a new one. Safe for several programs at once."""
        try:
            return self.find(body["name"])
        except BerthError as error:
            if error.code != "NOT_FOUND":
                raise
        try:
            return self.create(body)
        except BerthError as refused:
            if refused.code != "CONFLICT":
                raise
            # Another program was faster.
            return self.find(body["name"])

    def list(self, query: Mapping[str, Any] = {}) -> Iterator[types.Instance]:
        return items_of(self._transport, operations.list_instances, query=query)

    def change(
        self,
        id: str,
        body: types.ChangeInstanceRequest,
        *,
        if_match: Optional[str] = None,
        on_etag: OnEtag = None,
    ) -> types.Instance:
        return self._transport.call(
            operations.change_instance, {"id": id}, body=body, if_match=if_match, on_etag=on_etag
        )

    def delete(self, id: str) -> types.Instance:
        return self._transport.call(operations.delete_instance, {"id": id})

    def start_vm(self, id: str, *, idempotency_key: Optional[str] = None) -> types.Vm:
        return self._transport.call(
            operations.start_vm, {"id": id}, idempotency_key=idempotency_key
        )

    def stop_vm(self, id: str, *, force: bool = False) -> types.Vm:
        return self._transport.call(operations.stop_vm, {"id": id}, {"force": True if force else None})

    def restart_vm(self, id: str, *, idempotency_key: Optional[str] = None) -> types.Vm:
        return self._transport.call(
            operations.restart_vm, {"id": id}, idempotency_key=idempotency_key
        )

    def suspend_vm(self, id: str, *, idempotency_key: Optional[str] = None) -> types.Vm:
        """Saves memory and disk in object storage; `start_vm` continues from there."""
        return self._transport.call(
            operations.suspend_vm, {"id": id}, idempotency_key=idempotency_key
        )

    def flush_vm(self, id: str, *, idempotency_key: Optional[str] = None) -> types.FlushReceipt:
        return self._transport.call(
            operations.flush_vm, {"id": id}, idempotency_key=idempotency_key
        )

    def generations(self, id: str) -> Iterator[types.Generation]:
        """What `restore` can return to and `fork` can begin from, newest first."""
        return items_of(self._transport, operations.list_generations, {"id": id})

    def fork(
        self, id: str, body: types.ForkRequest, *, idempotency_key: Optional[str] = None
    ) -> types.Instance:
        """Creates an instance with the disk of this one, as of its last flush or an older generation."""
        return self._transport.call(
            operations.fork_instance, {"id": id}, body=body, idempotency_key=idempotency_key
        )

    def restore(
        self, id: str, generation: int, *, idempotency_key: Optional[str] = None
    ) -> types.Instance:
        """Sets the disk back to a generation, as a new one. The VM must be stopped."""
        return self._transport.call(
            operations.restore_instance,
            {"id": id},
            body={"generation": generation},
            idempotency_key=idempotency_key,
        )

    def create_port(
        self, id: str, body: types.CreatePortRequest, *, idempotency_key: Optional[str] = None
    ) -> types.Port:
        """Publishes a port of the guest under a URL."""
        return self._transport.call(
            operations.create_port, {"id": id}, body=body, idempotency_key=idempotency_key
        )

    def ports(self, id: str) -> types.ListPortsResponse:
        return self._transport.call(operations.list_ports, {"id": id})

    def ssh(self, id: str) -> types.ConnectionDetails:
        return self._transport.call(operations.get_ssh, {"id": id})

    def key_set(self, id: str, *, on_etag: OnEtag = None) -> types.KeySet:
        return self._transport.call(operations.get_key_set, {"id": id}, on_etag=on_etag)

    def replace_key_set(
        self, id: str, body: types.ReplaceKeySetRequest, *, if_match: Optional[str] = None
    ) -> types.KeySet:
        return self._transport.call(
            operations.replace_key_set, {"id": id}, body=body, if_match=if_match
        )

    def wait_for(
        self,
        id: str,
        state: WaitedState,
        *,
        begun: bool = False,
        timeout_seconds: float = WAIT_SECONDS,
        on_vm: OnVm = None,
    ) -> types.Vm:
        """Waits until the VM is in the state. Raises VmWaitError when it failed, or at the timeout."""
        return wait_for_vm(
            self._transport, id, state, begun=begun, timeout_seconds=timeout_seconds, on_vm=on_vm
        )

    def wait_until_deleted(
        self, id: str, *, timeout_seconds: float = WAIT_SECONDS, on_vm: OnVm = None
    ) -> None:
        """Waits until the instance and all its objects are deleted."""
        wait_until_deleted(self._transport, id, timeout_seconds=timeout_seconds, on_vm=on_vm)
