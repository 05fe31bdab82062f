# Written by `npm run openapi`; do not change by hand.
from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union

class ErrorBodyErrorDetailsItem(TypedDict):
    field: str
    issue: str

class _ErrorBodyErrorRequired(TypedDict):
    code: Literal["INVALID_REQUEST", "UNAUTHENTICATED", "Unauthenticated", "MFA_REQUIRED", "FORBIDDEN", "SUDO_REQUIRED", "NOT_FOUND", "CONFLICT", "VM_NOT_RUNNING", "IDEMPOTENCY_IN_PROGRESS", "PRECONDITION_FAILED", "PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE", "RANGE_NOT_SATISFIABLE", "MISDIRECTED_REQUEST", "IDEMPOTENCY_KEY_REUSED", "ACCOUNT_LOCKED", "RATE_LIMITED", "QUOTA_EXCEEDED", "INTERNAL", "BAD_GATEWAY", "UNAVAILABLE", "DISK_FULL"]
    message: str
    """For people; programs read the code"""
    request_id: str


class ErrorBodyError(_ErrorBodyErrorRequired, total=False):
    details: List[ErrorBodyErrorDetailsItem]
    """The fields that are wrong, if the error is about fields"""

class ErrorBody(TypedDict):
    error: ErrorBodyError

class ProblemDetailsDetailsItem(TypedDict):
    field: str
    issue: str

class _ProblemDetailsRequired(TypedDict):
    type: str
    title: str
    """The phrase of the HTTP status"""
    status: int
    detail: str
    """For people; programs read the code"""
    code: Literal["INVALID_REQUEST", "UNAUTHENTICATED", "Unauthenticated", "MFA_REQUIRED", "FORBIDDEN", "SUDO_REQUIRED", "NOT_FOUND", "CONFLICT", "VM_NOT_RUNNING", "IDEMPOTENCY_IN_PROGRESS", "PRECONDITION_FAILED", "PAYLOAD_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE", "RANGE_NOT_SATISFIABLE", "MISDIRECTED_REQUEST", "IDEMPOTENCY_KEY_REUSED", "ACCOUNT_LOCKED", "RATE_LIMITED", "QUOTA_EXCEEDED", "INTERNAL", "BAD_GATEWAY", "UNAVAILABLE", "DISK_FULL"]
    request_id: str


class ProblemDetails(_ProblemDetailsRequired, total=False):
    details: List[ProblemDetailsDetailsItem]
    """The fields that are wrong, if the error is about fields"""

class AcceptInvitationRequest(TypedDict):
    token: str

class AddHostnameRequest(TypedDict):
    hostname: str

class AddMfaFactorRequest(TypedDict):
    type: Literal["totp", "webauthn"]
    name: str

class AddMfaFactorResponse1(TypedDict):
    id: str
    type: Literal["totp"]
    name: str
    secret: str
    """Base32, shown only once"""
    otpauth_url: str
    """The secret as the URL for a QR code"""

class AddMfaFactorResponse2(TypedDict):
    id: str
    type: Literal["webauthn"]
    name: str
    options: Dict[str, Any]

class AddSshKeyRequest(TypedDict):
    name: str
    public_key: str

class ApiKey(TypedDict):
    id: str
    name: str
    scope: str
    service_account_id: Optional[str]
    allowed_cidrs: List[str]
    """The networks that it may be used from; empty: everywhere"""
    prefix: str
    """The first characters of the key"""
    last4: str
    """The last characters of the key"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    last_used_at: Optional[str]
    expires_at: Optional[str]
    previous_expires_at: Optional[str]
    created_by_key: Optional[str]

class AskForDeviceLoginRequest(TypedDict, total=False):
    sudo: bool
    """The session also gets a sudo grant; whoever confirms needs one, too"""

class AuditEntry(TypedDict):
    id: str
    seq: Optional[int]
    at: str
    """RFC 3339, UTC, milliseconds"""
    actor: str
    actor_name: Optional[str]
    action: str
    target: Optional[str]
    target_name: Optional[str]
    ip: Optional[str]
    request_id: Optional[str]
    data: Dict[str, Any]

class BeginOidcSudoRequest(TypedDict, total=False):
    return_to: str
    """The path of the console that follows; any other address leads to `/`"""

class ChangeBillingEmailRequest(TypedDict):
    email: str

class ChangeEmailRequest(TypedDict):
    email: str
    password: str

class ChangeGenerationRequest(TypedDict, total=False):
    name: Optional[str]
    pinned: bool

class ChangeInstanceRequestEgress(TypedDict, total=False):
    mode: EgressMode
    allow: List[str]
    """Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow`"""

class ChangeInstanceRequestPlacement(TypedDict, total=False):
    host_labels: Dict[str, str]
    """A host must have all of these labels. What it has says its operator"""
    tolerations: List[str]
    """Taints of hosts that the instance tolerates. A host with any other taint does not get it"""

class ChangeInstanceRequest(TypedDict, total=False):
    name: str
    """A DNS label"""
    labels: Dict[str, str]
    idle_timeout_seconds: Optional[int]
    wake_on_connect: bool
    """A connection to the SSH port of a stopped VM, or a request to one of its HTTP ports, starts the VM and waits until the guest answers"""
    restart: Literal["never", "on_failure"]
    """`on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost"""
    auto_flush_seconds: Optional[int]
    generations_keep: Optional[GenerationsKeep]
    egress: ChangeInstanceRequestEgress
    placement: ChangeInstanceRequestPlacement
    cpus: int
    """Can be changed while the VM is stopped; applies from the next start"""
    memory_mib: int
    """Can be changed while the VM is stopped; applies from the next start"""
    disk_gib: int
    """Can only grow. If the VM runs, the answer waits up to 15 s until its root file system has grown; `disk.growth` says whether it has. Otherwise it grows at the next boot"""

class ChangeMeRequest(TypedDict, total=False):
    name: str

class ChangeMemberRequest(TypedDict):
    role: Literal["owner", "admin", "member", "billing"]

class ChangeOrgRequest(TypedDict, total=False):
    name: str

class ChangePasswordRequest(TypedDict):
    current_password: str
    new_password: str
    """12 to 256 characters; none of the 10,000 most used passwords, and not made of the account's e-mail address"""

class ChangePortRequest(TypedDict, total=False):
    access: PortAccess

class ChangeWebhookRequest(TypedDict, total=False):
    url: str
    """https; http only to networks that the operator allows"""
    events: List[Literal["instance.created", "instance.deleted", "instance.forked", "instance.restored", "instance.ssh_keys_replaced", "vm.started", "vm.stopped", "vm.suspended", "vm.restarted", "vm.failed", "vm.recovered", "disk.flushed", "disk.flush_failed", "egress.denied", "port.created", "port.changed", "port.deleted", "ssh_key.added", "ssh_key.revoked", "api_key.created", "api_key.rotated", "api_key.revoked", "member.added", "member.removed", "member.role_changed", "webhook.disabled", "webhook.ping", "*"]]
    """Types of events, or `*` for all"""
    name: str
    status: Literal["enabled", "disabled"]

class ConfirmEmailRequest(TypedDict):
    token: str

class _ConfirmPasswordResetRequestRequired(TypedDict):
    token: str
    new_password: str
    """12 to 256 characters; none of the 10,000 most used passwords, and not made of the account's e-mail address"""


class ConfirmPasswordResetRequest(_ConfirmPasswordResetRequestRequired, total=False):
    revoke_all: bool
    """Also remove every API key, SSH key and factor"""

class ConnectionDetails(TypedDict):
    host: str
    port: int
    user: str
    host_keys: List[HostKey]
    known_hosts: List[str]
    command: str
    allowed_keys: int
    """How many keys may log in"""

class ConsoleTicket(TypedDict):
    ticket: str
    """Shown only once; valid for one connection"""
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class CountUnreadNotificationsResponse(TypedDict):
    count: int

class _CreateApiKeyRequestRequired(TypedDict):
    name: str
    scope: str
    """`resource:action` separated by spaces, or `*`"""


class CreateApiKeyRequest(_CreateApiKeyRequestRequired, total=False):
    expires_in_seconds: int
    """Absent: it does not expire. A key created with an API key expires with that key at the latest"""
    service_account_id: str
    """The service account that holds the key; absent: the caller holds it"""
    allowed_cidrs: List[str]
    """Addresses or networks that it may be used from; empty or absent: everywhere, or those of the API key that creates it"""

class CreateApiKeyResponse(TypedDict):
    id: str
    name: str
    scope: str
    service_account_id: Optional[str]
    allowed_cidrs: List[str]
    """The networks that it may be used from; empty: everywhere"""
    prefix: str
    """The first characters of the key"""
    last4: str
    """The last characters of the key"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    last_used_at: Optional[str]
    expires_at: Optional[str]
    previous_expires_at: Optional[str]
    created_by_key: Optional[str]
    key: str
    """The plain key, shown only once"""

class _CreateDirectoryRequestRequired(TypedDict):
    path: str
    """An absolute path in the guest. Any byte but NUL may be in it: bytes that are no text, and `%`, are percent-encoded"""


class CreateDirectoryRequest(_CreateDirectoryRequestRequired, total=False):
    mode: str
    """Permission bits, octal"""
    user: str
    """A user of the guest, by name or number, who becomes the owner, with the first group of that user"""

class CreateExecRequestTty(TypedDict):
    columns: int
    rows: int

class _CreateExecRequestRequired(TypedDict):
    command: List[str]
    """The program, by path or by name, and its arguments, each of at most 131071 bytes in UTF-8; no shell interprets them"""


class CreateExecRequest(_CreateExecRequestRequired, total=False):
    env: Dict[str, str]
    """Added to PATH, HOME, USER, LOGNAME and SHELL, and to TERM with a terminal"""
    cwd: str
    user: str
    """A user of the guest, by name or number"""
    tty: CreateExecRequestTty
    stdin: bool
    """Its input stays open; a terminal always has input"""
    timeout_seconds: Optional[int]
    """Then its process group gets SIGKILL; null: no timeout"""

class CreateInstanceRequestEgress(TypedDict, total=False):
    mode: EgressMode
    allow: List[str]
    """Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow`"""

class CreateInstanceRequestPlacement(TypedDict, total=False):
    host_labels: Dict[str, str]
    """A host must have all of these labels. What it has says its operator"""
    tolerations: List[str]
    """Taints of hosts that the instance tolerates. A host with any other taint does not get it"""

class _CreateInstanceRequestRequired(TypedDict):
    name: str
    """A DNS label"""


class CreateInstanceRequest(_CreateInstanceRequestRequired, total=False):
    image: str
    cpus: int
    memory_mib: int
    disk_gib: int
    labels: Dict[str, str]
    idle_timeout_seconds: Optional[int]
    wake_on_connect: bool
    """A connection to the SSH port of a stopped VM, or a request to one of its HTTP ports, starts the VM and waits until the guest answers"""
    restart: Literal["never", "on_failure"]
    """`on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost"""
    auto_flush_seconds: Optional[int]
    generations_keep: Optional[GenerationsKeep]
    egress: CreateInstanceRequestEgress
    placement: CreateInstanceRequestPlacement
    user_data: str
    """A script that root runs once, at the first boot, with /bin/sh unless its first line names another interpreter; at most 64 KiB in UTF-8. Its output is in the console log. The API never shows it, and a fork does not run it"""

class CreateInvitationRequest(TypedDict):
    email: str
    role: Literal["owner", "admin", "member", "billing"]

class CreateOrgRequest(TypedDict):
    name: str

class _CreatePortRequestRequired(TypedDict):
    port: int
    """In the guest; a port may be published more than once"""


class CreatePortRequest(_CreatePortRequestRequired, total=False):
    access: Literal["private", "public"]
    """`public`: anybody. `private`: a credential with `vm:read` on the instance, or a browser that was sent by `…/open`"""

class CreateServiceAccountRequest(TypedDict):
    name: str
    scope: str
    """`resource:action` separated by spaces, or `*`"""

class CreateWebhookRequest(TypedDict):
    url: str
    """https; http only to networks that the operator allows"""
    events: List[Literal["instance.created", "instance.deleted", "instance.forked", "instance.restored", "instance.ssh_keys_replaced", "vm.started", "vm.stopped", "vm.suspended", "vm.restarted", "vm.failed", "vm.recovered", "disk.flushed", "disk.flush_failed", "egress.denied", "port.created", "port.changed", "port.deleted", "ssh_key.added", "ssh_key.revoked", "api_key.created", "api_key.rotated", "api_key.revoked", "member.added", "member.removed", "member.role_changed", "webhook.disabled", "webhook.ping", "*"]]
    """Types of events, or `*` for all"""
    name: str

class CreateWebhookResponse(TypedDict):
    id: str
    url: str
    events: List[str]
    name: str
    status: Literal["enabled", "disabled"]
    disabled_reason: Optional[str]
    disabled_at: Optional[str]
    failing_since: Optional[str]
    proven_at: Optional[str]
    previous_secret_expires_at: Optional[str]
    created_by: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    updated_at: str
    """RFC 3339, UTC, milliseconds"""
    secret: str
    """The signing secret, shown only once"""

class CustomHostnameTxt(TypedDict):
    name: str
    value: str

class CustomHostname(TypedDict):
    hostname: str
    status: Literal["pending", "active"]
    """`active` once the TXT record is found; it is looked up again daily"""
    txt: CustomHostnameTxt
    checked_at: Optional[str]
    """The last look-up; null: none yet"""
    problem: Optional[str]
    """Why it is not active, as of the last look-up"""

class _DeniedDestinationRequired(TypedDict):
    at: str
    """RFC 3339, UTC, milliseconds"""
    count: int
    """The attempts, of which `at` is the last"""


class DeniedDestination(_DeniedDestinationRequired, total=False):
    name: str
    """The name that the guest asked for; absent: not known"""
    address: str
    """Absent: the look-up of the name was refused"""
    port: int
    """Absent: a look-up, or a protocol without ports"""

class DeviceLogin(TypedDict):
    user_code: str
    """Eight letters, for people to compare"""
    ip: str
    """The address of the program"""
    user_agent: str
    """What the program calls itself"""
    sudo: bool
    """The session also gets a sudo grant; whoever confirms needs one, too"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class DeviceLoginStart(TypedDict):
    device_code: str
    """A secret of the program"""
    user_code: str
    """Eight letters, for people to compare"""
    url: str
    """Where a person confirms the code"""
    interval_seconds: int
    """Wait so long between two questions"""
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class _DiskRequired(TypedDict):
    size_bytes: int
    generation: int
    """The newest durable generation; 0 before the first flush"""
    durable_at: Optional[str]
    dirty_bytes: int
    """Bytes that the guest has written to its disk and that are not durable yet; at most 5 s old. What the guest still holds in memory is not counted, and a flush saves it too. After a VM has died, an upper bound until the next flush"""
    stored_bytes: int
    """The size of the stored objects of this disk, of all its generations; objects that a fork shares count for both"""


class Disk(_DiskRequired, total=False):
    growth: Literal["done", "next_boot"]
    """What became of the last increase of `disk_gib`. `done`: the guest's root file system has grown. `next_boot`: it grows when the guest boots, or earlier if the VM runs and its host could not do it at once. Absent: there was none"""

class Egress(TypedDict):
    mode: EgressMode
    allow: List[str]
    """Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow`"""

class EventData(TypedDict):
    """The resource as the API shows it, with these fields"""
    org_id: str
    actor: str
    sequence: Optional[int]

class Event(TypedDict):
    id: str
    type: EventType
    timestamp: str
    """RFC 3339, UTC, milliseconds"""
    actor_name: Optional[str]
    data: EventData
    """The resource as the API shows it, with these fields"""

class EventResource(TypedDict):
    type: str
    """`instance`, `ssh_key`, `api_key`, `member` or `webhook`"""
    id: str
    name: Optional[str]

class Exec(TypedDict):
    id: str
    instance_id: str
    command: List[str]
    """The program, by path or by name, and its arguments, each of at most 131071 bytes in UTF-8; no shell interprets them"""
    state: ExecState
    exit_code: Optional[int]
    signal: Optional[str]
    timed_out: bool
    """It was killed at its timeout"""
    lost_with: Optional[Literal["boot", "supervisor"]]
    started_at: str
    """RFC 3339, UTC, milliseconds"""
    ended_at: Optional[str]
    output_bytes: int
    """Of stdout and stderr together; of a running exec about a second old"""

class _ExecRequestRequired(TypedDict):
    command: List[str]
    """The program, by path or by name, and its arguments, each of at most 131071 bytes in UTF-8; no shell interprets them"""


class ExecRequest(_ExecRequestRequired, total=False):
    stdin: str
    """At most 1 MiB in UTF-8"""
    timeout_seconds: int

class ExecResult(TypedDict):
    exit_code: Optional[int]
    stdout: str
    """As UTF-8; the first MiB"""
    stderr: str
    """As UTF-8; the first MiB"""
    truncated: bool
    """stdout or stderr was longer"""

class ExecTicket(TypedDict):
    ticket: str
    """Shown only once; valid for one connection"""
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class File(TypedDict):
    name: str
    """For people; `path` has the bytes"""
    path: str
    """The absolute path, percent-encoded: as it stands, it fits a query and a `path` in JSON"""
    type: FileType
    size: Optional[int]
    mode: str
    """Permission bits, octal"""
    user: str
    """The owner: its name, or its number if it has none"""
    mtime: str
    """RFC 3339, UTC, milliseconds"""

class FlushReceipt(TypedDict):
    generation: int
    durable_at: Optional[str]
    dirty_bytes: int
    uploaded_bytes: int
    segments: int
    duration_ms: int
    consistency: Literal["filesystem", "crash", "offline"]

class _ForkRequestRequired(TypedDict):
    name: str
    """A DNS label"""


class ForkRequest(_ForkRequestRequired, total=False):
    generation: int
    secrets: bool
    """Whether the fork gets the values of the secrets too, which needs `vm:write`; without them it has names and hosts only"""

class ForkedFrom(TypedDict):
    instance_id: str
    generation: int
    dirty_bytes: int
    """What the parent had written and not flushed, by its host's last report, at most 5 s before: the fork lacks at least this. It lacks nothing after a flush"""

class Generation(TypedDict):
    generation: int
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    bytes: int
    """The bytes that its flush uploaded"""
    consistency: Literal["filesystem", "crash", "offline"]
    name: Optional[str]
    pinned: bool
    """Kept regardless of `generations_keep`"""
    trigger: Literal["request", "auto", "stop", "suspend", "import", "fork", "restore"]
    """What made it: a requested or an automatic flush, the flush of a stop or a suspend, an import of a file, a fork, or a restore"""
    origin: Optional[GenerationOrigin]
    """Of a fork or a restore: the generation whose content it has; it may be gone"""
    dirty_bytes: Optional[int]
    segments: Optional[int]
    duration_ms: Optional[int]

class GenerationOrigin(TypedDict):
    instance_id: str
    generation: int

class GenerationsKeep(TypedDict):
    last: int
    """How many of the newest generations are kept"""
    daily_days: int
    """Of older generations, the newest of a day (UTC) is kept, for this many days that have one"""

class HostKey(TypedDict):
    type: str
    fingerprint: str
    public_key: str

class Image(TypedDict):
    id: str
    current: Optional[str]
    """The version that new disks are based on; null: no host has stored one yet"""
    size_bytes: Optional[int]
    """The size of its root file system, which is the minimum size of a disk"""
    versions: List[str]
    """All versions that disks are or can be based on: hashes of root file systems"""

class Instance(TypedDict):
    id: str
    name: str
    org_id: str
    created_by: str
    image: str
    cpus: int
    memory_mib: int
    disk_gib: int
    labels: Dict[str, str]
    idle_timeout_seconds: Optional[int]
    wake_on_connect: bool
    restart: Literal["never", "on_failure"]
    """`on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost"""
    auto_flush_seconds: Optional[int]
    generations_keep: GenerationsKeep
    egress: Egress
    placement: Placement
    ssh: SshAddress
    host_keys: List[HostKey]
    """The guest's SSH host keys as of its last boot; empty before the first"""
    forked_from: Optional[ForkedFrom]
    """The instance whose disk it began with; it may be deleted. Null: none"""
    deleting: bool
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    updated_at: str
    """RFC 3339, UTC, milliseconds"""
    vm: Vm
    disk: Disk

class _InvitationRequired(TypedDict):
    id: str
    email: str
    role: Literal["owner", "admin", "member", "billing"]
    expires_at: str
    """RFC 3339, UTC, milliseconds"""


class Invitation(_InvitationRequired, total=False):
    accept_url: str
    """The link with the token, for the inviter to pass on; present only where the server sends no mail, and shown only once. It begins with BERTH_PUBLIC_URL, by default an address that only the server itself reaches"""

class KeySet(TypedDict):
    mode: Literal["account", "explicit"]
    data: List[KeySetKey]

class KeySetKey(TypedDict):
    id: str
    name: str
    type: str
    fingerprint: str
    owner_id: str

class ListApiKeysResponse(TypedDict):
    data: List[ApiKey]
    next_cursor: Optional[str]

class ListAuditResponse(TypedDict):
    data: List[AuditEntry]
    next_cursor: Optional[str]

class ListDeniedEgressResponse(TypedDict):
    data: List[DeniedDestination]
    next_cursor: Optional[str]

class ListEventsResponse(TypedDict):
    data: List[Event]
    next_cursor: Optional[str]

class ListExecsResponse(TypedDict):
    data: List[Exec]
    next_cursor: Optional[str]

class ListFilesResponse(TypedDict):
    data: List[File]
    next_cursor: Optional[str]

class ListGenerationsResponse(TypedDict):
    data: List[Generation]
    next_cursor: Optional[str]

class ListImagesResponse(TypedDict):
    data: List[Image]
    next_cursor: Optional[str]

class ListInstancesResponse(TypedDict):
    data: List[Instance]
    next_cursor: Optional[str]

class ListInvitationsResponse(TypedDict):
    data: List[ListedInvitation]
    next_cursor: Optional[str]

class ListMembersResponse(TypedDict):
    data: List[Member]
    next_cursor: Optional[str]

class ListMfaFactorsResponse(TypedDict):
    data: List[MfaFactor]
    next_cursor: Optional[str]

class ListNotificationsResponse(TypedDict):
    data: List[Notification]
    next_cursor: Optional[str]

class ListOperatorHostsResponse(TypedDict):
    data: List[OperatorHost]
    next_cursor: Optional[str]

class ListOperatorImagesResponse(TypedDict):
    data: List[OperatorImageVersion]
    next_cursor: Optional[str]

class ListOperatorOrganisationsResponse(TypedDict):
    data: List[OperatorOrganisation]
    next_cursor: Optional[str]

class ListOrgSshKeysResponse(TypedDict):
    data: List[KeySetKey]
    next_cursor: Optional[str]

class ListOrgsResponse(TypedDict):
    data: List[Org]
    next_cursor: Optional[str]

class ListPortsResponse(TypedDict):
    data: List[Port]
    next_cursor: Optional[str]

class ListSecretsResponse(TypedDict):
    data: List[Secret]
    next_cursor: Optional[str]

class ListServiceAccountsResponse(TypedDict):
    data: List[ServiceAccount]
    next_cursor: Optional[str]

class ListSessionsResponse(TypedDict):
    data: List[Session]
    next_cursor: Optional[str]

class ListSshKeysResponse(TypedDict):
    data: List[SshKey]
    next_cursor: Optional[str]

class ListUsageResponse(TypedDict):
    data: List[Usage]
    next_cursor: Optional[str]

class ListWebhookDeliveriesResponse(TypedDict):
    data: List[WebhookDelivery]
    next_cursor: Optional[str]

class ListWebhooksResponse(TypedDict):
    data: List[Webhook]
    next_cursor: Optional[str]

class ListedInvitation(TypedDict):
    id: str
    email: str
    role: Literal["owner", "admin", "member", "billing"]
    expires_at: str
    """RFC 3339, UTC, milliseconds"""
    invited_by: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""

class _LoginByPasskeyRequestResponseRequired(TypedDict):
    clientDataJSON: str
    authenticatorData: str
    signature: str


class LoginByPasskeyRequestResponse(_LoginByPasskeyRequestResponseRequired, total=False):
    userHandle: Optional[str]

class _LoginByPasskeyRequestRequired(TypedDict):
    id: str
    rawId: str
    type: Literal["public-key"]
    response: LoginByPasskeyRequestResponse


class LoginByPasskeyRequest(_LoginByPasskeyRequestRequired, total=False):
    authenticatorAttachment: Optional[str]
    clientExtensionResults: Dict[str, Any]

class _LoginRequestWebauthnResponseRequired(TypedDict):
    clientDataJSON: str
    authenticatorData: str
    signature: str


class LoginRequestWebauthnResponse(_LoginRequestWebauthnResponseRequired, total=False):
    userHandle: Optional[str]

class _LoginRequestWebauthnRequired(TypedDict):
    id: str
    rawId: str
    type: Literal["public-key"]
    response: LoginRequestWebauthnResponse


class LoginRequestWebauthn(_LoginRequestWebauthnRequired, total=False):
    authenticatorAttachment: Optional[str]
    clientExtensionResults: Dict[str, Any]

class _LoginRequestRequired(TypedDict):
    email: str
    password: str


class LoginRequest(_LoginRequestRequired, total=False):
    totp_code: str
    """Six digits"""
    recovery_code: str
    webauthn: LoginRequestWebauthn

class MarkAllNotificationsRequest(TypedDict, total=False):
    before: str
    """The last notification to mark, by its id, or the last time"""

class MarkAllNotificationsResponse(TypedDict):
    count: int

class MarkNotificationRequest(TypedDict):
    read: bool

class Member(TypedDict):
    id: str
    """The id of the user"""
    email: str
    name: str
    role: Literal["owner", "admin", "member", "billing"]
    by_groups: bool
    """Groups at the OpenID provider give the role, and take it; it cannot be changed here"""
    created_at: str
    """When the user joined"""

MetricHistory = TypedDict(
    "MetricHistory",
    {
        "range": "Literal[\"1h\", \"6h\", \"24h\", \"7d\", \"30d\"]",
        "from": "str",
        "to": "str",
        "step_seconds": "int",
        "samples": "List[MetricHistorySample]",
    },
)

class MetricHistorySampleMemory(TypedDict):
    used_bytes: Optional[MetricSpread]
    host_bytes: Optional[MetricSpread]

class MetricHistorySampleDisk(TypedDict):
    read_bytes_per_second: Optional[MetricSpread]
    written_bytes_per_second: Optional[MetricSpread]

class MetricHistorySampleNetwork(TypedDict):
    received_bytes_per_second: Optional[MetricSpread]
    sent_bytes_per_second: Optional[MetricSpread]

class MetricHistorySample(TypedDict):
    at: str
    """The beginning of the period"""
    measured_minutes: int
    """How many minutes of the period a VM ran and was measured"""
    cpu_share: Optional[MetricSpread]
    memory: MetricHistorySampleMemory
    disk: MetricHistorySampleDisk
    network: MetricHistorySampleNetwork
    dirty_bytes: Optional[MetricSpread]

class MetricSpread(TypedDict):
    mean: float
    min: float
    max: float

class MetricsSampleMemory(TypedDict):
    host_bytes: int
    """The memory that it uses on the host"""
    used_bytes: Optional[int]
    total_bytes: Optional[int]

class MetricsSampleDisk(TypedDict):
    read_bytes: int
    written_bytes: int
    read_operations: int
    write_operations: int

class MetricsSampleNetwork(TypedDict):
    received_bytes: Optional[int]
    sent_bytes: Optional[int]

class MetricsSample(TypedDict):
    at: str
    """RFC 3339, UTC, milliseconds"""
    cpu_seconds: float
    """The CPU time of the VM's process: of its CPUs, disk and network"""
    cpu_share: Optional[float]
    memory: MetricsSampleMemory
    disk: MetricsSampleDisk
    network: MetricsSampleNetwork

class MfaFactor(TypedDict):
    id: str
    type: Literal["totp", "webauthn"]
    name: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    confirmed_at: Optional[str]
    last_used_at: Optional[str]

MoveFileRequest = TypedDict(
    "MoveFileRequest",
    {
        "from": "str",
        "to": "str",
    },
)

class Notification(TypedDict):
    id: str
    kind: NotificationKind
    severity: NotificationSeverity
    title: str
    body: str
    resource: Optional[NotificationResource]
    data: Dict[str, Any]
    """For programs: the subject"""
    count: int
    """How often it was raised for the resource within an hour, while unread"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    read_at: Optional[str]

NotificationPreferencesMail = TypedDict(
    "NotificationPreferencesMail",
    {
        "vm.failed": "bool",
        "vm.recovered": "bool",
        "disk.flush_failed": "bool",
        "disk.nearly_full": "bool",
        "api_key.created": "bool",
        "api_key.expiring": "bool",
        "ssh_key.added": "bool",
        "account.locked": "bool",
        "login.new_place": "bool",
        "mfa.added": "bool",
        "mfa.removed": "bool",
        "password.changed": "bool",
        "billing_email.changed": "bool",
        "webhook.failing": "bool",
        "webhook.disabled": "bool",
        "org.invited": "bool",
        "org.role_changed": "bool",
    },
)

NotificationPreferencesDescriptions = TypedDict(
    "NotificationPreferencesDescriptions",
    {
        "vm.failed": "str",
        "vm.recovered": "str",
        "disk.flush_failed": "str",
        "disk.nearly_full": "str",
        "api_key.created": "str",
        "api_key.expiring": "str",
        "ssh_key.added": "str",
        "account.locked": "str",
        "login.new_place": "str",
        "mfa.added": "str",
        "mfa.removed": "str",
        "password.changed": "str",
        "billing_email.changed": "str",
        "webhook.failing": "str",
        "webhook.disabled": "str",
        "org.invited": "str",
        "org.role_changed": "str",
    },
)

class NotificationPreferences(TypedDict):
    mail: NotificationPreferencesMail
    always: List[Literal["vm.failed", "vm.recovered", "disk.flush_failed", "disk.nearly_full", "api_key.created", "api_key.expiring", "ssh_key.added", "account.locked", "login.new_place", "mfa.added", "mfa.removed", "password.changed", "billing_email.changed", "webhook.failing", "webhook.disabled", "org.invited", "org.role_changed"]]
    """The kinds that cannot be muted"""
    descriptions: NotificationPreferencesDescriptions
    """When each kind is raised, for people"""

class NotificationResource(TypedDict):
    type: str
    id: str

class OidcSudoStart(TypedDict):
    url: str
    """Where the browser goes; valid for ten minutes"""

class OpenPortRequest(TypedDict, total=False):
    hostname: str
    """One of the port's active custom hostnames; default: its own hostname"""

class OperatorDataFolder(TypedDict):
    path: str
    free_bytes: int
    """What Berth may still write there"""
    total_bytes: int
    """The size of its file system"""

class OperatorFinding(TypedDict):
    severity: Literal["problem", "weakness"]
    """`problem`: something does not work now. `weakness`: a setting, a limit or a file weakens the installation"""
    check: str
    found: str
    next: Optional[str]

class OperatorHost(TypedDict):
    id: str
    name: str
    remote: bool
    """On another machine than the server"""
    state: Literal["up", "cordoned", "draining", "drained", "expected", "silent", "lost", "refused"]
    """`cordoned`: gets no new VM. `draining`: and its VMs move to other hosts. `drained`: and it has none. `expected`: added, and not seen yet. `silent`: no report in 20 s. `lost`: its lease has expired. `refused`: it speaks another version of the protocol"""
    last_seen_at: Optional[str]
    labels: Dict[str, str]
    taints: List[str]
    lease_seconds: Optional[float]
    vms: int
    """VMs that are not stopped, suspended or failed"""
    memory_used_mib: int
    """The memory of these VMs"""
    memory_mib: Optional[int]
    cpus: Optional[int]
    accelerator: Optional[Literal["kvm", "tcg"]]
    protocol: Optional[int]
    problems: List[str]
    """What does not work there"""

class OperatorImageVersion(TypedDict):
    image: str
    version: str
    current: bool
    """New disks are based on it"""
    size_bytes: int
    stored_bytes: int
    disks: int
    """Disks that are based on it"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""

class OperatorMail(TypedDict):
    smtp: bool
    """Whether a mail server is set (BERTH_SMTP_URL). Without one, mails are files in the data folder"""
    waiting: int
    """Mails that are not sent yet"""
    failing: int
    """Of these, mails that were tried without success. Each is tried again until it expires; the log has the reason"""

class OperatorOrganisation(TypedDict):
    id: str
    name: str
    operator: bool
    """It operates the installation"""
    members: int
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    quota: OrgQuota

class OperatorStatus(TypedDict):
    version: str
    findings: List[OperatorFinding]
    """Problems first; empty: none is known"""
    storage: OperatorStorage
    data_folder: OperatorDataFolder
    mail: OperatorMail

class OperatorStorage(TypedDict):
    kind: Literal["folder", "s3"]
    place: str
    """The path of the folder, or the bucket and its endpoint"""
    disk_bytes: int
    """The stored objects of all disks; objects that forks share count once"""
    awaiting_removal_bytes: int
    """Of these, objects that nothing needs any more. They are removed after the removal delay"""
    removal_delay_seconds: int
    """How long such objects stay, for a database that is set back in time"""
    image_bytes: int
    """The stored objects of all images"""

class Org(TypedDict):
    id: str
    name: str
    billing_email: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    operator: bool
    """Its owners and admins see the whole installation (`GET /v1/operator`)"""

class OrgQuota(TypedDict):
    instances: QuotaUse
    cpus: QuotaUse
    memory_mib: QuotaUse
    disk_gib: QuotaUse
    api_keys: QuotaUse
    service_accounts: QuotaUse
    webhooks: QuotaUse
    streams: QuotaUse

class PasskeyOptionsRequest(TypedDict, total=False):
    email: str

class PingWebhookResponse(TypedDict):
    event_id: str
    """The `webhook-id` of the ping"""

class Placement(TypedDict):
    host_labels: Dict[str, str]
    """A host must have all of these labels. What it has says its operator"""
    tolerations: List[str]
    """Taints of hosts that the instance tolerates. A host with any other taint does not get it"""

class Port(TypedDict):
    id: str
    instance_id: str
    port: int
    """In the guest; a port may be published more than once"""
    access: PortAccess
    hostname: str
    """The same for the port's life, and never assigned again"""
    url: str
    hostnames: List[CustomHostname]
    """At most 10"""
    requests_per_minute: int
    """In the last 60 s; a few seconds old"""
    last_error: Optional[PortError]
    """The newest answer of Berth instead of the guest (502, 503, 504); null: none yet"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    updated_at: str
    """RFC 3339, UTC, milliseconds"""

class PortError(TypedDict):
    at: str
    """RFC 3339, UTC, milliseconds"""
    code: str
    message: str

class PortTicket(TypedDict):
    url: str
    """For the browser; works once"""
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class QuotaUse(TypedDict):
    limit: Optional[int]
    source: Literal["default", "set"]
    """`set`: the operator has set it for this organisation"""
    used: int

class RefreshResponse(TypedDict):
    session_token: str
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class _RegisterRequestRequired(TypedDict):
    email: str
    password: str
    """12 to 256 characters; none of the 10,000 most used passwords, and not made of the account's e-mail address"""


class RegisterRequest(_RegisterRequestRequired, total=False):
    name: str
    invitation_token: str

class ReplaceKeySetRequest1(TypedDict):
    ssh_key_ids: List[str]

class ReplaceKeySetRequest2(TypedDict):
    mode: Literal["account"]

class ReplayWebhookRequest(TypedDict):
    since: str
    """RFC 3339; at most 27 days ago"""

class ReplayWebhookResponse(TypedDict):
    count: int
    """How many events are sent"""

class RequestPasswordResetRequest(TypedDict):
    email: str

class ResizeExecRequest(TypedDict):
    columns: int
    rows: int

class RestoreRequest(TypedDict):
    generation: int

class RevokeOtherSessionsResponse(TypedDict):
    count: int

class RotateApiKeyRequest(TypedDict, total=False):
    grace_seconds: int
    """For how long the previous secret keeps working"""

class RotateWebhookSecretRequest(TypedDict, total=False):
    grace_seconds: int
    """For how long the previous secret signs too"""

class Secret(TypedDict):
    name: str
    hosts: List[str]
    """Host names, exact or `*.` and a domain: the value is sent to no other host. A host must also be allowed by the egress policy"""
    has_value: bool
    """False after a fork without values: the VM has no variable of this secret until it is set"""
    updated_at: str
    """RFC 3339, UTC, milliseconds"""

class ServiceAccount(TypedDict):
    id: str
    name: str
    scope: str
    """The largest scope that its keys can have"""
    created_at: str
    """RFC 3339, UTC, milliseconds"""

class Session(TypedDict):
    id: str
    ip: str
    user_agent: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    last_seen_at: str
    """RFC 3339, UTC, milliseconds"""
    ends_at: str
    """RFC 3339, UTC, milliseconds"""
    current: bool

class SessionResponse(TypedDict):
    user: User
    session_token: str
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

SetNotificationPreferencesRequestMail = TypedDict(
    "SetNotificationPreferencesRequestMail",
    {
        "vm.failed": "bool",
        "vm.recovered": "bool",
        "disk.flush_failed": "bool",
        "disk.nearly_full": "bool",
        "api_key.created": "bool",
        "api_key.expiring": "bool",
        "ssh_key.added": "bool",
        "account.locked": "bool",
        "login.new_place": "bool",
        "mfa.added": "bool",
        "mfa.removed": "bool",
        "password.changed": "bool",
        "billing_email.changed": "bool",
        "webhook.failing": "bool",
        "webhook.disabled": "bool",
        "org.invited": "bool",
        "org.role_changed": "bool",
    },
    total=False,
)

class SetNotificationPreferencesRequest(TypedDict):
    mail: SetNotificationPreferencesRequestMail

class SetSecretRequest(TypedDict):
    value: str
    """Without control characters. No response, log or audit entry contains it"""
    hosts: List[str]
    """Host names, exact or `*.` and a domain: the value is sent to no other host. A host must also be allowed by the egress policy"""

class SignalExecRequest(TypedDict):
    signal: Literal["SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO", "SIGKILL", "SIGPIPE", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGSEGV", "SIGSTKFLT", "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGWINCH", "SIGXCPU", "SIGXFSZ"]

class SshAddress(TypedDict):
    host: str
    port: int

class SshKey(TypedDict):
    id: str
    name: str
    type: str
    fingerprint: str
    public_key: str
    org_id: Optional[str]
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    last_used_at: Optional[str]

class SudoGrantRequest(TypedDict):
    password: str

class SudoGrantResponse(TypedDict):
    expires_at: str
    """RFC 3339, UTC, milliseconds"""

class TakeDeviceLoginRequest(TypedDict):
    device_code: str
    """A secret of the program"""

class Usage(TypedDict):
    instance_id: str
    """It may be deleted"""
    start: str
    """When the hour or day begins, in UTC"""
    running_seconds: float
    """How long a VM ran"""
    cpu_seconds: float
    """Processor time of the VM, with the emulation of its devices"""
    memory_gib_hours: float
    """Memory of the running VM, times hours"""
    stored_gib_hours: float
    """Bytes in object storage, times hours; shared ones count for each instance"""
    flushed_bytes: int
    """Written by the guest and saved to object storage"""
    http_bytes: int
    """Passed by HTTP ports, in both directions"""

class User(TypedDict):
    id: str
    email: str
    name: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    mfa_enabled: bool
    password_login: bool
    """The account has a password, and this Berth takes passwords"""
    oidc_login: bool
    """The account is linked to the OpenID provider"""
    email_confirmed: bool
    """While false, the account can have no API or SSH keys and accept no invitation"""

class VerifyMfaFactorRequest1(TypedDict):
    code: str
    """Six digits"""

class VerifyMfaFactorRequest2Response(TypedDict):
    clientDataJSON: str
    attestationObject: str

class _VerifyMfaFactorRequest2Required(TypedDict):
    id: str
    rawId: str
    type: Literal["public-key"]
    response: VerifyMfaFactorRequest2Response


class VerifyMfaFactorRequest2(_VerifyMfaFactorRequest2Required, total=False):
    authenticatorAttachment: Optional[str]
    clientExtensionResults: Dict[str, Any]

class VerifyMfaFactorResponse(TypedDict):
    recovery_codes: Optional[List[str]]
    """Shown only once; each is valid for one login. null: the account already has codes, which stay valid"""

class Vm(TypedDict):
    id: Optional[str]
    instance_id: str
    state: VmState
    boot: int
    """Counts starts; a soft reboot is not one"""
    host_id: Optional[str]
    started_at: Optional[str]
    stopped_at: Optional[str]
    reason: Optional[VmReason]
    disk: Disk

class VmMetrics(TypedDict):
    now: MetricsSample
    interval_seconds: int
    samples: List[MetricsSample]
    """The last hour, oldest first"""

class VmReason(TypedDict):
    code: str
    message: str
    actor: str

class Webhook(TypedDict):
    id: str
    url: str
    events: List[str]
    name: str
    status: Literal["enabled", "disabled"]
    disabled_reason: Optional[str]
    disabled_at: Optional[str]
    failing_since: Optional[str]
    proven_at: Optional[str]
    previous_secret_expires_at: Optional[str]
    created_by: str
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    updated_at: str
    """RFC 3339, UTC, milliseconds"""

class WebhookAttempt(TypedDict):
    number: int
    at: str
    """RFC 3339, UTC, milliseconds"""
    status: Optional[int]
    latency_ms: int
    error: Optional[str]
    response: str
    """The first 4 KiB of the answer"""

class WebhookAttemptDetail(TypedDict):
    number: int
    at: str
    """RFC 3339, UTC, milliseconds"""
    status: Optional[int]
    latency_ms: int
    error: Optional[str]
    response: str
    """The first 4 KiB of the answer"""
    url: str
    response_headers: Dict[str, str]
    """The first 2 KiB of the headers of the answer, without cookies"""

class WebhookDelivery(TypedDict):
    id: str
    event_id: str
    """The `webhook-id` of each attempt"""
    event_type: Optional[str]
    resource: Optional[EventResource]
    """What the event is about; null: the event is older than 30 days"""
    instance_id: Optional[str]
    status: Literal["pending", "delivered", "failed"]
    attempt_count: int
    next_attempt_at: Optional[str]
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    attempts: List[WebhookAttempt]
    """The last ten, oldest first; kept for 14 days"""

class WebhookDeliveryDetail(TypedDict):
    id: str
    event_id: str
    """The `webhook-id` of each attempt"""
    event_type: Optional[str]
    resource: Optional[EventResource]
    """What the event is about; null: the event is older than 30 days"""
    instance_id: Optional[str]
    status: Literal["pending", "delivered", "failed"]
    attempt_count: int
    next_attempt_at: Optional[str]
    created_at: str
    """RFC 3339, UTC, milliseconds"""
    attempts: List[WebhookAttemptDetail]
    """The last ten, oldest first; kept for 14 days"""
    request: Optional[WebhookRequest]
    """The request of the last attempt; before the first, as it would be sent now; null: the event is older than 30 days"""

class WebhookRequest(TypedDict):
    method: Literal["POST"]
    url: str
    headers: Dict[str, str]
    """Signed with the present secret; after a rotation, earlier attempts had another signature"""
    body: str
    """The exact bytes"""

AddMfaFactorResponse = Union[AddMfaFactorResponse1, AddMfaFactorResponse2]

EgressMode = Literal["open", "deny", "allow"]

EmptyRequest = Dict[str, Any]

EventType = Literal["instance.created", "instance.deleted", "instance.forked", "instance.restored", "instance.ssh_keys_replaced", "vm.started", "vm.stopped", "vm.suspended", "vm.restarted", "vm.failed", "vm.recovered", "disk.flushed", "disk.flush_failed", "egress.denied", "port.created", "port.changed", "port.deleted", "ssh_key.added", "ssh_key.revoked", "api_key.created", "api_key.rotated", "api_key.revoked", "member.added", "member.removed", "member.role_changed", "webhook.disabled", "webhook.ping"]

ExecState = Literal["running", "exited", "lost"]

FileType = Literal["file", "directory", "symlink", "other"]

NotificationKind = Literal["vm.failed", "vm.recovered", "disk.flush_failed", "disk.nearly_full", "api_key.created", "api_key.expiring", "ssh_key.added", "account.locked", "login.new_place", "mfa.added", "mfa.removed", "password.changed", "billing_email.changed", "webhook.failing", "webhook.disabled", "org.invited", "org.role_changed"]

NotificationSeverity = Literal["info", "warning", "critical"]

PasskeyOptionsResponse = Dict[str, Any]

PortAccess = Literal["private", "public"]

ReplaceKeySetRequest = Union[ReplaceKeySetRequest1, ReplaceKeySetRequest2]

VerifyMfaFactorRequest = Union[VerifyMfaFactorRequest1, VerifyMfaFactorRequest2]

VmState = Literal["starting", "running", "restarting", "suspending", "suspended", "stopping", "stopped", "failed"]
