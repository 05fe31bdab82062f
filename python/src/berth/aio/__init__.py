"""
The same names as in `berth`, for asyncio: each verb is awaited, each list and stream is read with `async for`. A cancelled
task ends its connection at once.
"""
from ._client import Berth as Berth
from ._commands import ExecHandle as ExecHandle
from ._files import Files as Files
from ._instance import Instance as Instance
from ._instances import Instances as Instances
from ._vms import RunningVm as RunningVm
from ._vms import Vm as Vm
