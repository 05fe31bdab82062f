"""
The client of Berth's API: Linux machines that keep disk, name and SSH address while they are stopped.

    import berth

    with berth.Instance.get_or_create("web") as vm:
        print(vm.exec("uname -a").stdout)

`berth.aio` has the same names for asyncio: `async with await berth.aio.Instance.get_or_create("web") as vm`.
"""
from . import operations as operations
from . import types as types
from ._http import Frame as Frame
from ._operation import ListOperation as ListOperation
from ._operation import Operation as Operation
from ._sync._client import Berth as Berth
from ._sync._commands import ExecHandle as ExecHandle
from ._sync._files import Files as Files
from ._sync._instance import Instance as Instance
from ._sync._instances import Instances as Instances
from ._sync._vms import RunningVm as RunningVm
from ._sync._vms import Vm as Vm
from ._version import VERSION
from ._words import ExecOutput as ExecOutput
from ._words import ExecResult as ExecResult
from .errors import BerthConnectionError as BerthConnectionError
from .errors import BerthError as BerthError
from .errors import OutputLostError as OutputLostError
from .errors import VmWaitError as VmWaitError
from .errors import WebhookVerificationError as WebhookVerificationError
from .webhooks import WebhookMessage as WebhookMessage
from .webhooks import verify_webhook as verify_webhook

__version__ = VERSION
