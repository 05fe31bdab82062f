/** Written by `npm run openapi` from openapi/v1.json; do not change by hand. */

/** A body that is sent as it is; a stream is sent while it is read. */
export type RawBody = string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

export type ErrorBody = {
  error: {
    code: 'INVALID_REQUEST' | 'UNAUTHENTICATED' | 'Unauthenticated' | 'MFA_REQUIRED' | 'FORBIDDEN' | 'SUDO_REQUIRED' | 'NOT_FOUND' | 'CONFLICT' | 'VM_NOT_RUNNING' | 'IDEMPOTENCY_IN_PROGRESS' | 'PRECONDITION_FAILED' | 'PAYLOAD_TOO_LARGE' | 'UNSUPPORTED_MEDIA_TYPE' | 'RANGE_NOT_SATISFIABLE' | 'MISDIRECTED_REQUEST' | 'IDEMPOTENCY_KEY_REUSED' | 'ACCOUNT_LOCKED' | 'RATE_LIMITED' | 'QUOTA_EXCEEDED' | 'INTERNAL' | 'BAD_GATEWAY' | 'UNAVAILABLE' | 'DISK_FULL';
    /** For people; programs read the code */
    message: string;
    request_id: string;
    /** The fields that are wrong, if the error is about fields */
    details?: Array<{
      field: string;
      issue: string;
    }> | undefined;
  };
};

export type ProblemDetails = {
  type: string;
  /** The phrase of the HTTP status */
  title: string;
  status: number;
  /** For people; programs read the code */
  detail: string;
  code: 'INVALID_REQUEST' | 'UNAUTHENTICATED' | 'Unauthenticated' | 'MFA_REQUIRED' | 'FORBIDDEN' | 'SUDO_REQUIRED' | 'NOT_FOUND' | 'CONFLICT' | 'VM_NOT_RUNNING' | 'IDEMPOTENCY_IN_PROGRESS' | 'PRECONDITION_FAILED' | 'PAYLOAD_TOO_LARGE' | 'UNSUPPORTED_MEDIA_TYPE' | 'RANGE_NOT_SATISFIABLE' | 'MISDIRECTED_REQUEST' | 'IDEMPOTENCY_KEY_REUSED' | 'ACCOUNT_LOCKED' | 'RATE_LIMITED' | 'QUOTA_EXCEEDED' | 'INTERNAL' | 'BAD_GATEWAY' | 'UNAVAILABLE' | 'DISK_FULL';
  request_id: string;
  /** The fields that are wrong, if the error is about fields */
  details?: Array<{
    field: string;
    issue: string;
  }> | undefined;
};

export type AcceptInvitationRequest = {
  token: string;
};

export type AddHostnameRequest = {
  hostname: string;
};

export type AddMfaFactorRequest = {
  type: 'totp' | 'webauthn';
  name: string;
};

export type AddMfaFactorResponse = {
  id: string;
  type: 'totp';
  name: string;
  /** Base32, shown only once */
  secret: string;
  /** The secret as the URL for a QR code */
  otpauth_url: string;
} | {
  id: string;
  type: 'webauthn';
  name: string;
  options: {
    [more: string]: unknown;
  };
};

export type AddSshKeyRequest = {
  name: string;
  public_key: string;
};

export type ApiKey = {
  id: string;
  name: string;
  scope: string;
  service_account_id: string | null;
  /** The networks that it may be used from; empty: everywhere */
  allowed_cidrs: Array<string>;
  /** The first characters of the key */
  prefix: string;
  /** The last characters of the key */
  last4: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  last_used_at: string | null;
  expires_at: string | null;
  previous_expires_at: string | null;
  created_by_key: string | null;
};

export type AskForDeviceLoginRequest = {
  /** The session also gets a sudo grant; whoever confirms needs one, too */
  sudo?: boolean | undefined;
};

export type AuditEntry = {
  id: string;
  seq: number | null;
  /** RFC 3339, UTC, milliseconds */
  at: string;
  actor: string;
  actor_name: string | null;
  action: string;
  target: string | null;
  target_name: string | null;
  ip: string | null;
  request_id: string | null;
  data: Record<string, unknown>;
};

export type BeginOidcSudoRequest = {
  /** The path of the console that follows; any other address leads to `/` */
  return_to?: string | undefined;
};

export type ChangeBillingEmailRequest = {
  email: string;
};

export type ChangeEmailRequest = {
  email: string;
  password: string;
};

export type ChangeGenerationRequest = {
  name?: string | null | undefined;
  pinned?: boolean | undefined;
};

export type ChangeInstanceRequest = {
  /** A DNS label */
  name?: string | undefined;
  labels?: Record<string, string> | undefined;
  idle_timeout_seconds?: number | null | undefined;
  /** A connection to the SSH port of a stopped VM, or a request to one of its HTTP ports, starts the VM and waits until the guest answers */
  wake_on_connect?: boolean | undefined;
  /** `on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost */
  restart?: 'never' | 'on_failure' | undefined;
  auto_flush_seconds?: number | null | undefined;
  generations_keep?: GenerationsKeep | null | undefined;
  egress?: {
    mode?: EgressMode | undefined;
    /** Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow` */
    allow?: Array<string> | undefined;
  } | undefined;
  placement?: {
    /** A host must have all of these labels. What it has says its operator */
    host_labels?: Record<string, string> | undefined;
    /** Taints of hosts that the instance tolerates. A host with any other taint does not get it */
    tolerations?: Array<string> | undefined;
  } | undefined;
  /** Can be changed while the VM is stopped; applies from the next start */
  cpus?: number | undefined;
  /** Can be changed while the VM is stopped; applies from the next start */
  memory_mib?: number | undefined;
  /** Can only grow. If the VM runs, the answer waits up to 15 s until its root file system has grown; `disk.growth` says whether it has. Otherwise it grows at the next boot */
  disk_gib?: number | undefined;
};

export type ChangeMeRequest = {
  name?: string | undefined;
};

export type ChangeMemberRequest = {
  role: 'owner' | 'admin' | 'member' | 'billing';
};

export type ChangeOrgRequest = {
  name?: string | undefined;
};

export type ChangePasswordRequest = {
  current_password: string;
  /** 12 to 256 characters; none of the 10,000 most used passwords, and not made of the account's e-mail address */
  new_password: string;
};

export type ChangePortRequest = {
  access?: PortAccess | undefined;
};

export type ChangeWebhookRequest = {
  /** https; http only to networks that the operator allows */
  url?: string | undefined;
  /** Types of events, or `*` for all */
  events?: Array<'instance.created' | 'instance.deleted' | 'instance.forked' | 'instance.restored' | 'instance.ssh_keys_replaced' | 'vm.started' | 'vm.stopped' | 'vm.suspended' | 'vm.restarted' | 'vm.failed' | 'vm.recovered' | 'disk.flushed' | 'disk.flush_failed' | 'egress.denied' | 'port.created' | 'port.changed' | 'port.deleted' | 'ssh_key.added' | 'ssh_key.revoked' | 'api_key.created' | 'api_key.rotated' | 'api_key.revoked' | 'member.added' | 'member.removed' | 'member.role_changed' | 'webhook.disabled' | 'webhook.ping' | '*'> | undefined;
  name?: string | undefined;
  status?: 'enabled' | 'disabled' | undefined;
};

export type ConfirmEmailRequest = {
  token: string;
};

export type ConfirmPasswordResetRequest = {
  token: string;
  /** 12 to 256 characters; none of the 10,000 most used passwords, and not made of the account's e-mail address */
  new_password: string;
  /** Also remove every API key, SSH key and factor */
  revoke_all?: boolean | undefined;
};

export type ConnectionDetails = {
  host: string;
  port: number;
  user: string;
  host_keys: Array<HostKey>;
  known_hosts: Array<string>;
  command: string;
  /** How many keys may log in */
  allowed_keys: number;
};

export type ConsoleTicket = {
  /** Shown only once; valid for one connection */
  ticket: string;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type CountUnreadNotificationsResponse = {
  count: number;
};

export type CreateApiKeyRequest = {
  name: string;
  /** `resource:action` separated by spaces, or `*` */
  scope: string;
  /** Absent: it does not expire. A key created with an API key expires with that key at the latest */
  expires_in_seconds?: number | undefined;
  /** The service account that holds the key; absent: the caller holds it */
  service_account_id?: string | undefined;
  /** Addresses or networks that it may be used from; empty or absent: everywhere, or those of the API key that creates it */
  allowed_cidrs?: Array<string> | undefined;
};

export type CreateApiKeyResponse = {
  id: string;
  name: string;
  scope: string;
  service_account_id: string | null;
  /** The networks that it may be used from; empty: everywhere */
  allowed_cidrs: Array<string>;
  /** The first characters of the key */
  prefix: string;
  /** The last characters of the key */
  last4: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  last_used_at: string | null;
  expires_at: string | null;
  previous_expires_at: string | null;
  created_by_key: string | null;
  /** The plain key, shown only once */
  key: string;
};

export type CreateDirectoryRequest = {
  /** An absolute path in the guest. Any byte but NUL may be in it: bytes that are no text, and `%`, are percent-encoded */
  path: string;
  /** Permission bits, octal */
  mode?: string | undefined;
  /** A user of the guest, by name or number, who becomes the owner, with the first group of that user */
  user?: string | undefined;
};

export type CreateExecRequest = {
  /** The program, by path or by name, and its arguments, each of at most 131071 bytes in UTF-8; no shell interprets them */
  command: Array<string>;
  /** Added to PATH, HOME, USER, LOGNAME and SHELL, and to TERM with a terminal */
  env?: Record<string, string> | undefined;
  cwd?: string | undefined;
  /** A user of the guest, by name or number */
  user?: string | undefined;
  tty?: {
    columns: number;
    rows: number;
  } | undefined;
  /** Its input stays open; a terminal always has input */
  stdin?: boolean | undefined;
  /** Then its process group gets SIGKILL; null: no timeout */
  timeout_seconds?: number | null | undefined;
};

export type CreateInstanceRequest = {
  /** A DNS label */
  name: string;
  image?: string | undefined;
  cpus?: number | undefined;
  memory_mib?: number | undefined;
  disk_gib?: number | undefined;
  labels?: Record<string, string> | undefined;
  idle_timeout_seconds?: number | null | undefined;
  /** A connection to the SSH port of a stopped VM, or a request to one of its HTTP ports, starts the VM and waits until the guest answers */
  wake_on_connect?: boolean | undefined;
  /** `on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost */
  restart?: 'never' | 'on_failure' | undefined;
  auto_flush_seconds?: number | null | undefined;
  generations_keep?: GenerationsKeep | null | undefined;
  egress?: {
    mode?: EgressMode | undefined;
    /** Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow` */
    allow?: Array<string> | undefined;
  } | undefined;
  placement?: {
    /** A host must have all of these labels. What it has says its operator */
    host_labels?: Record<string, string> | undefined;
    /** Taints of hosts that the instance tolerates. A host with any other taint does not get it */
    tolerations?: Array<string> | undefined;
  } | undefined;
  /** A script that root runs once, at the first boot, with /bin/sh unless its first line names another interpreter; at most 64 KiB in UTF-8. Its output is in the console log. The API never shows it, and a fork does not run it */
  user_data?: string | undefined;
};

export type CreateInvitationRequest = {
  email: string;
  role: 'owner' | 'admin' | 'member' | 'billing';
};

export type CreateOrgRequest = {
  name: string;
};

export type CreatePortRequest = {
  /** In the guest; a port may be published more than once */
  port: number;
  /** `public`: anybody. `private`: a credential with `vm:read` on the instance, or a browser that was sent by `…/open` */
  access?: 'private' | 'public' | undefined;
};

export type CreateServiceAccountRequest = {
  name: string;
  /** `resource:action` separated by spaces, or `*` */
  scope: string;
};

export type CreateWebhookRequest = {
  /** https; http only to networks that the operator allows */
  url: string;
  /** Types of events, or `*` for all */
  events: Array<'instance.created' | 'instance.deleted' | 'instance.forked' | 'instance.restored' | 'instance.ssh_keys_replaced' | 'vm.started' | 'vm.stopped' | 'vm.suspended' | 'vm.restarted' | 'vm.failed' | 'vm.recovered' | 'disk.flushed' | 'disk.flush_failed' | 'egress.denied' | 'port.created' | 'port.changed' | 'port.deleted' | 'ssh_key.added' | 'ssh_key.revoked' | 'api_key.created' | 'api_key.rotated' | 'api_key.revoked' | 'member.added' | 'member.removed' | 'member.role_changed' | 'webhook.disabled' | 'webhook.ping' | '*'>;
  name: string;
};

export type CreateWebhookResponse = {
  id: string;
  url: string;
  events: Array<string>;
  name: string;
  status: 'enabled' | 'disabled';
  disabled_reason: string | null;
  disabled_at: string | null;
  failing_since: string | null;
  proven_at: string | null;
  previous_secret_expires_at: string | null;
  created_by: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** RFC 3339, UTC, milliseconds */
  updated_at: string;
  /** The signing secret, shown only once */
  secret: string;
};

export type CustomHostname = {
  hostname: string;
  /** `active` once the TXT record is found; it is looked up again daily */
  status: 'pending' | 'active';
  txt: {
    name: string;
    value: string;
  };
  /** The last look-up; null: none yet */
  checked_at: string | null;
  /** Why it is not active, as of the last look-up */
  problem: string | null;
};

export type DeniedDestination = {
  /** RFC 3339, UTC, milliseconds */
  at: string;
  /** The name that the guest asked for; absent: not known */
  name?: string | undefined;
  /** Absent: the look-up of the name was refused */
  address?: string | undefined;
  /** Absent: a look-up, or a protocol without ports */
  port?: number | undefined;
  /** The attempts, of which `at` is the last */
  count: number;
};

export type DeviceLogin = {
  /** Eight letters, for people to compare */
  user_code: string;
  /** The address of the program */
  ip: string;
  /** What the program calls itself */
  user_agent: string;
  /** The session also gets a sudo grant; whoever confirms needs one, too */
  sudo: boolean;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type DeviceLoginStart = {
  /** A secret of the program */
  device_code: string;
  /** Eight letters, for people to compare */
  user_code: string;
  /** Where a person confirms the code */
  url: string;
  /** Wait so long between two questions */
  interval_seconds: number;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type Disk = {
  size_bytes: number;
  /** The newest durable generation; 0 before the first flush */
  generation: number;
  durable_at: string | null;
  /** Bytes that the guest has written to its disk and that are not durable yet; at most 5 s old. What the guest still holds in memory is not counted, and a flush saves it too. After a VM has died, an upper bound until the next flush */
  dirty_bytes: number;
  /** The size of the stored objects of this disk, of all its generations; objects that a fork shares count for both */
  stored_bytes: number;
  /** What became of the last increase of `disk_gib`. `done`: the guest's root file system has grown. `next_boot`: it grows when the guest boots, or earlier if the VM runs and its host could not do it at once. Absent: there was none */
  growth?: 'done' | 'next_boot' | undefined;
};

export type Egress = {
  mode: EgressMode;
  /** Names (`example.com`, `*.example.com`), addresses and networks, each with an optional `:port`. A name without a port means ports 80 and 443. Kept in every mode; applies in mode `allow` */
  allow: Array<string>;
};

/** `open`: the public internet; `deny`: nothing; `allow`: the entries of `allow`. Private addresses are closed in every mode */
export type EgressMode = 'open' | 'deny' | 'allow';

export type EmptyRequest = Record<string, never>;

export type Event = {
  id: string;
  type: EventType;
  /** RFC 3339, UTC, milliseconds */
  timestamp: string;
  actor_name: string | null;
  /** The resource as the API shows it, with these fields */
  data: {
    org_id: string;
    actor: string;
    sequence: number | null;
    [more: string]: unknown;
  };
};

export type EventResource = {
  /** `instance`, `ssh_key`, `api_key`, `member` or `webhook` */
  type: string;
  id: string;
  name: string | null;
};

export type EventType = 'instance.created' | 'instance.deleted' | 'instance.forked' | 'instance.restored' | 'instance.ssh_keys_replaced' | 'vm.started' | 'vm.stopped' | 'vm.suspended' | 'vm.restarted' | 'vm.failed' | 'vm.recovered' | 'disk.flushed' | 'disk.flush_failed' | 'egress.denied' | 'port.created' | 'port.changed' | 'port.deleted' | 'ssh_key.added' | 'ssh_key.revoked' | 'api_key.created' | 'api_key.rotated' | 'api_key.revoked' | 'member.added' | 'member.removed' | 'member.role_changed' | 'webhook.disabled' | 'webhook.ping';

export type Exec = {
  id: string;
  instance_id: string;
  /** The program, by path or by name, and its arguments, each of at most 131071 bytes in UTF-8; no shell interprets them */
  command: Array<string>;
  state: ExecState;
  exit_code: number | null;
  signal: string | null;
  /** It was killed at its timeout */
  timed_out: boolean;
  lost_with: 'boot' | 'supervisor' | null;
  /** RFC 3339, UTC, milliseconds */
  started_at: string;
  ended_at: string | null;
  /** Of stdout and stderr together; of a running exec about a second old */
  output_bytes: number;
};

export type ExecRequest = {
  /** The program, by path or by name, and its arguments, each of at most 131071 bytes in UTF-8; no shell interprets them */
  command: Array<string>;
  /** At most 1 MiB in UTF-8 */
  stdin?: string | undefined;
  timeout_seconds?: number | undefined;
};

export type ExecResult = {
  exit_code: number | null;
  /** As UTF-8; the first MiB */
  stdout: string;
  /** As UTF-8; the first MiB */
  stderr: string;
  /** stdout or stderr was longer */
  truncated: boolean;
};

/** `lost`: its boot ended (restart, stop, crash) before it did, or before its exit had left the guest; `lost_with` says whether something else ended */
export type ExecState = 'running' | 'exited' | 'lost';

export type ExecTicket = {
  /** Shown only once; valid for one connection */
  ticket: string;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type File = {
  /** For people; `path` has the bytes */
  name: string;
  /** The absolute path, percent-encoded: as it stands, it fits a query and a `path` in JSON */
  path: string;
  type: FileType;
  size: number | null;
  /** Permission bits, octal */
  mode: string;
  /** The owner: its name, or its number if it has none */
  user: string;
  /** RFC 3339, UTC, milliseconds */
  mtime: string;
};

/** `other`: a device, a socket or a named pipe */
export type FileType = 'file' | 'directory' | 'symlink' | 'other';

export type FlushReceipt = {
  generation: number;
  durable_at: string | null;
  dirty_bytes: number;
  uploaded_bytes: number;
  segments: number;
  duration_ms: number;
  consistency: 'filesystem' | 'crash' | 'offline';
};

export type ForkRequest = {
  /** A DNS label */
  name: string;
  generation?: number | undefined;
  /** Whether the fork gets the values of the secrets too, which needs `vm:write`; without them it has names and hosts only */
  secrets?: boolean | undefined;
};

export type ForkedFrom = {
  instance_id: string;
  generation: number;
  /** What the parent had written and not flushed, by its host's last report, at most 5 s before: the fork lacks at least this. It lacks nothing after a flush */
  dirty_bytes: number;
};

export type Generation = {
  generation: number;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** The bytes that its flush uploaded */
  bytes: number;
  consistency: 'filesystem' | 'crash' | 'offline';
  name: string | null;
  /** Kept regardless of `generations_keep` */
  pinned: boolean;
  /** What made it: a requested or an automatic flush, the flush of a stop or a suspend, an import of a file, a fork, or a restore */
  trigger: 'request' | 'auto' | 'stop' | 'suspend' | 'import' | 'fork' | 'restore';
  /** Of a fork or a restore: the generation whose content it has; it may be gone */
  origin: GenerationOrigin | null;
  dirty_bytes: number | null;
  segments: number | null;
  duration_ms: number | null;
};

export type GenerationOrigin = {
  instance_id: string;
  generation: number;
};

export type GenerationsKeep = {
  /** How many of the newest generations are kept */
  last: number;
  /** Of older generations, the newest of a day (UTC) is kept, for this many days that have one */
  daily_days: number;
};

export type HostKey = {
  type: string;
  fingerprint: string;
  public_key: string;
};

export type Image = {
  id: string;
  /** The version that new disks are based on; null: no host has stored one yet */
  current: string | null;
  /** The size of its root file system, which is the minimum size of a disk */
  size_bytes: number | null;
  /** All versions that disks are or can be based on: hashes of root file systems */
  versions: Array<string>;
};

export type Instance = {
  id: string;
  name: string;
  org_id: string;
  created_by: string;
  image: string;
  cpus: number;
  memory_mib: number;
  disk_gib: number;
  labels: Record<string, string>;
  idle_timeout_seconds: number | null;
  wake_on_connect: boolean;
  /** `on_failure`: a VM that fails is started again, after 1 s, then 2, 4, 8 and 16 s; after five such starts within 10 minutes it stays `failed`. Its next `running` has the reason `recovered`, which says what was lost */
  restart: 'never' | 'on_failure';
  auto_flush_seconds: number | null;
  generations_keep: GenerationsKeep;
  egress: Egress;
  placement: Placement;
  ssh: SshAddress;
  /** The guest's SSH host keys as of its last boot; empty before the first */
  host_keys: Array<HostKey>;
  /** The instance whose disk it began with; it may be deleted. Null: none */
  forked_from: ForkedFrom | null;
  deleting: boolean;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** RFC 3339, UTC, milliseconds */
  updated_at: string;
  vm: Vm;
  disk: Disk;
};

export type Invitation = {
  id: string;
  email: string;
  role: 'owner' | 'admin' | 'member' | 'billing';
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
  /** The link with the token, for the inviter to pass on; present only where the server sends no mail, and shown only once. It begins with BERTH_PUBLIC_URL, by default an address that only the server itself reaches */
  accept_url?: string | undefined;
};

export type KeySet = {
  mode: 'account' | 'explicit';
  data: Array<KeySetKey>;
};

export type KeySetKey = {
  id: string;
  name: string;
  type: string;
  fingerprint: string;
  owner_id: string;
};

export type ListApiKeysResponse = {
  data: Array<ApiKey>;
  next_cursor: string | null;
};

export type ListAuditResponse = {
  data: Array<AuditEntry>;
  next_cursor: string | null;
};

export type ListDeniedEgressResponse = {
  data: Array<DeniedDestination>;
  next_cursor: string | null;
};

export type ListEventsResponse = {
  data: Array<Event>;
  next_cursor: string | null;
};

export type ListExecsResponse = {
  data: Array<Exec>;
  next_cursor: string | null;
};

export type ListFilesResponse = {
  data: Array<File>;
  next_cursor: string | null;
};

export type ListGenerationsResponse = {
  data: Array<Generation>;
  next_cursor: string | null;
};

export type ListImagesResponse = {
  data: Array<Image>;
  next_cursor: string | null;
};

export type ListInstancesResponse = {
  data: Array<Instance>;
  next_cursor: string | null;
};

export type ListInvitationsResponse = {
  data: Array<ListedInvitation>;
  next_cursor: string | null;
};

export type ListMembersResponse = {
  data: Array<Member>;
  next_cursor: string | null;
};

export type ListMfaFactorsResponse = {
  data: Array<MfaFactor>;
  next_cursor: string | null;
};

export type ListNotificationsResponse = {
  data: Array<Notification>;
  next_cursor: string | null;
};

export type ListOperatorHostsResponse = {
  data: Array<OperatorHost>;
  next_cursor: string | null;
};

export type ListOperatorImagesResponse = {
  data: Array<OperatorImageVersion>;
  next_cursor: string | null;
};

export type ListOperatorOrganisationsResponse = {
  data: Array<OperatorOrganisation>;
  next_cursor: string | null;
};

export type ListOrgSshKeysResponse = {
  data: Array<KeySetKey>;
  next_cursor: string | null;
};

export type ListOrgsResponse = {
  data: Array<Org>;
  next_cursor: string | null;
};

export type ListPortsResponse = {
  data: Array<Port>;
  next_cursor: string | null;
};

export type ListSecretsResponse = {
  data: Array<Secret>;
  next_cursor: string | null;
};

export type ListServiceAccountsResponse = {
  data: Array<ServiceAccount>;
  next_cursor: string | null;
};

export type ListSessionsResponse = {
  data: Array<Session>;
  next_cursor: string | null;
};

export type ListSshKeysResponse = {
  data: Array<SshKey>;
  next_cursor: string | null;
};

export type ListUsageResponse = {
  data: Array<Usage>;
  next_cursor: string | null;
};

export type ListWebhookDeliveriesResponse = {
  data: Array<WebhookDelivery>;
  next_cursor: string | null;
};

export type ListWebhooksResponse = {
  data: Array<Webhook>;
  next_cursor: string | null;
};

export type ListedInvitation = {
  id: string;
  email: string;
  role: 'owner' | 'admin' | 'member' | 'billing';
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
  invited_by: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
};

export type LoginByPasskeyRequest = {
  id: string;
  rawId: string;
  type: 'public-key';
  authenticatorAttachment?: string | null | undefined;
  clientExtensionResults?: {
    [more: string]: unknown;
  } | undefined;
  response: {
    clientDataJSON: string;
    authenticatorData: string;
    signature: string;
    userHandle?: string | null | undefined;
    [more: string]: unknown;
  };
};

export type LoginRequest = {
  email: string;
  password: string;
  /** Six digits */
  totp_code?: string | undefined;
  recovery_code?: string | undefined;
  webauthn?: {
    id: string;
    rawId: string;
    type: 'public-key';
    authenticatorAttachment?: string | null | undefined;
    clientExtensionResults?: {
      [more: string]: unknown;
    } | undefined;
    response: {
      clientDataJSON: string;
      authenticatorData: string;
      signature: string;
      userHandle?: string | null | undefined;
      [more: string]: unknown;
    };
  } | undefined;
};

export type MarkAllNotificationsRequest = {
  /** The last notification to mark, by its id, or the last time */
  before?: string | undefined;
};

export type MarkAllNotificationsResponse = {
  count: number;
};

export type MarkNotificationRequest = {
  read: boolean;
};

export type Member = {
  /** The id of the user */
  id: string;
  email: string;
  name: string;
  role: 'owner' | 'admin' | 'member' | 'billing';
  /** Groups at the OpenID provider give the role, and take it; it cannot be changed here */
  by_groups: boolean;
  /** When the user joined */
  created_at: string;
};

export type MetricHistory = {
  range: '1h' | '6h' | '24h' | '7d' | '30d';
  /** RFC 3339, UTC, milliseconds */
  from: string;
  /** RFC 3339, UTC, milliseconds */
  to: string;
  /** The length of a period */
  step_seconds: number;
  /** Oldest first; a period in which no VM was measured has none */
  samples: Array<MetricHistorySample>;
};

export type MetricHistorySample = {
  /** The beginning of the period */
  at: string;
  /** How many minutes of the period a VM ran and was measured */
  measured_minutes: number;
  cpu_share: MetricSpread | null;
  memory: {
    used_bytes: MetricSpread | null;
    host_bytes: MetricSpread | null;
  };
  disk: {
    read_bytes_per_second: MetricSpread | null;
    written_bytes_per_second: MetricSpread | null;
  };
  network: {
    received_bytes_per_second: MetricSpread | null;
    sent_bytes_per_second: MetricSpread | null;
  };
  dirty_bytes: MetricSpread | null;
};

export type MetricSpread = {
  mean: number;
  min: number;
  max: number;
};

export type MetricsSample = {
  /** RFC 3339, UTC, milliseconds */
  at: string;
  /** The CPU time of the VM's process: of its CPUs, disk and network */
  cpu_seconds: number;
  cpu_share: number | null;
  memory: {
    /** The memory that it uses on the host */
    host_bytes: number;
    used_bytes: number | null;
    total_bytes: number | null;
  };
  disk: {
    read_bytes: number;
    written_bytes: number;
    read_operations: number;
    write_operations: number;
  };
  network: {
    received_bytes: number | null;
    sent_bytes: number | null;
  };
};

export type MfaFactor = {
  id: string;
  type: 'totp' | 'webauthn';
  name: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  confirmed_at: string | null;
  last_used_at: string | null;
};

export type MoveFileRequest = {
  /** An absolute path in the guest. Any byte but NUL may be in it: bytes that are no text, and `%`, are percent-encoded */
  from: string;
  /** An absolute path in the guest. Any byte but NUL may be in it: bytes that are no text, and `%`, are percent-encoded */
  to: string;
};

export type Notification = {
  id: string;
  kind: NotificationKind;
  severity: NotificationSeverity;
  title: string;
  body: string;
  resource: NotificationResource | null;
  /** For programs: the subject */
  data: Record<string, unknown>;
  /** How often it was raised for the resource within an hour, while unread */
  count: number;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  read_at: string | null;
};

export type NotificationKind = 'vm.failed' | 'vm.recovered' | 'disk.flush_failed' | 'disk.nearly_full' | 'api_key.created' | 'api_key.expiring' | 'ssh_key.added' | 'account.locked' | 'login.new_place' | 'mfa.added' | 'mfa.removed' | 'password.changed' | 'billing_email.changed' | 'webhook.failing' | 'webhook.disabled' | 'org.invited' | 'org.role_changed';

export type NotificationPreferences = {
  mail: {
    'vm.failed': boolean;
    'vm.recovered': boolean;
    'disk.flush_failed': boolean;
    'disk.nearly_full': boolean;
    'api_key.created': boolean;
    'api_key.expiring': boolean;
    'ssh_key.added': boolean;
    'account.locked': boolean;
    'login.new_place': boolean;
    'mfa.added': boolean;
    'mfa.removed': boolean;
    'password.changed': boolean;
    'billing_email.changed': boolean;
    'webhook.failing': boolean;
    'webhook.disabled': boolean;
    'org.invited': boolean;
    'org.role_changed': boolean;
  };
  /** The kinds that cannot be muted */
  always: Array<'vm.failed' | 'vm.recovered' | 'disk.flush_failed' | 'disk.nearly_full' | 'api_key.created' | 'api_key.expiring' | 'ssh_key.added' | 'account.locked' | 'login.new_place' | 'mfa.added' | 'mfa.removed' | 'password.changed' | 'billing_email.changed' | 'webhook.failing' | 'webhook.disabled' | 'org.invited' | 'org.role_changed'>;
  /** When each kind is raised, for people */
  descriptions: {
    'vm.failed': string;
    'vm.recovered': string;
    'disk.flush_failed': string;
    'disk.nearly_full': string;
    'api_key.created': string;
    'api_key.expiring': string;
    'ssh_key.added': string;
    'account.locked': string;
    'login.new_place': string;
    'mfa.added': string;
    'mfa.removed': string;
    'password.changed': string;
    'billing_email.changed': string;
    'webhook.failing': string;
    'webhook.disabled': string;
    'org.invited': string;
    'org.role_changed': string;
  };
};

export type NotificationResource = {
  type: string;
  id: string;
};

export type NotificationSeverity = 'info' | 'warning' | 'critical';

export type OidcSudoStart = {
  /** Where the browser goes; valid for ten minutes */
  url: string;
};

export type OpenPortRequest = {
  /** One of the port's active custom hostnames; default: its own hostname */
  hostname?: string | undefined;
};

export type OperatorDataFolder = {
  path: string;
  /** What Berth may still write there */
  free_bytes: number;
  /** The size of its file system */
  total_bytes: number;
};

export type OperatorFinding = {
  /** `problem`: something does not work now. `weakness`: a setting, a limit or a file weakens the installation */
  severity: 'problem' | 'weakness';
  check: string;
  found: string;
  next: string | null;
};

export type OperatorHost = {
  id: string;
  name: string;
  /** On another machine than the server */
  remote: boolean;
  /** `cordoned`: gets no new VM. `draining`: and its VMs move to other hosts. `drained`: and it has none. `expected`: added, and not seen yet. `silent`: no report in 20 s. `lost`: its lease has expired. `refused`: it speaks another version of the protocol */
  state: 'up' | 'cordoned' | 'draining' | 'drained' | 'expected' | 'silent' | 'lost' | 'refused';
  last_seen_at: string | null;
  labels: Record<string, string>;
  taints: Array<string>;
  lease_seconds: number | null;
  /** VMs that are not stopped, suspended or failed */
  vms: number;
  /** The memory of these VMs */
  memory_used_mib: number;
  memory_mib: number | null;
  cpus: number | null;
  accelerator: 'kvm' | 'tcg' | null;
  protocol: number | null;
  /** What does not work there */
  problems: Array<string>;
};

export type OperatorImageVersion = {
  image: string;
  version: string;
  /** New disks are based on it */
  current: boolean;
  size_bytes: number;
  stored_bytes: number;
  /** Disks that are based on it */
  disks: number;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
};

export type OperatorMail = {
  /** Whether a mail server is set (BERTH_SMTP_URL). Without one, mails are files in the data folder */
  smtp: boolean;
  /** Mails that are not sent yet */
  waiting: number;
  /** Of these, mails that were tried without success. Each is tried again until it expires; the log has the reason */
  failing: number;
};

export type OperatorOrganisation = {
  id: string;
  name: string;
  /** It operates the installation */
  operator: boolean;
  members: number;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  quota: OrgQuota;
};

export type OperatorStatus = {
  version: string;
  /** Problems first; empty: none is known */
  findings: Array<OperatorFinding>;
  storage: OperatorStorage;
  data_folder: OperatorDataFolder;
  mail: OperatorMail;
};

export type OperatorStorage = {
  kind: 'folder' | 's3';
  /** The path of the folder, or the bucket and its endpoint */
  place: string;
  /** The stored objects of all disks; objects that forks share count once */
  disk_bytes: number;
  /** Of these, objects that nothing needs any more. They are removed after the removal delay */
  awaiting_removal_bytes: number;
  /** How long such objects stay, for a database that is set back in time */
  removal_delay_seconds: number;
  /** The stored objects of all images */
  image_bytes: number;
};

export type Org = {
  id: string;
  name: string;
  billing_email: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** Its owners and admins see the whole installation (`GET /v1/operator`) */
  operator: boolean;
};

export type OrgQuota = {
  instances: QuotaUse;
  cpus: QuotaUse;
  memory_mib: QuotaUse;
  disk_gib: QuotaUse;
  api_keys: QuotaUse;
  service_accounts: QuotaUse;
  webhooks: QuotaUse;
  streams: QuotaUse;
};

export type PasskeyOptionsRequest = {
  email?: string | undefined;
};

export type PasskeyOptionsResponse = {
  [more: string]: unknown;
};

export type PingWebhookResponse = {
  /** The `webhook-id` of the ping */
  event_id: string;
};

export type Placement = {
  /** A host must have all of these labels. What it has says its operator */
  host_labels: Record<string, string>;
  /** Taints of hosts that the instance tolerates. A host with any other taint does not get it */
  tolerations: Array<string>;
};

export type Port = {
  id: string;
  instance_id: string;
  /** In the guest; a port may be published more than once */
  port: number;
  access: PortAccess;
  /** The same for the port's life, and never assigned again */
  hostname: string;
  url: string;
  /** At most 10 */
  hostnames: Array<CustomHostname>;
  /** In the last 60 s; a few seconds old */
  requests_per_minute: number;
  /** The newest answer of Berth instead of the guest (502, 503, 504); null: none yet */
  last_error: PortError | null;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** RFC 3339, UTC, milliseconds */
  updated_at: string;
};

/** `public`: anybody. `private`: a credential with `vm:read` on the instance, or a browser that was sent by `…/open` */
export type PortAccess = 'private' | 'public';

export type PortError = {
  /** RFC 3339, UTC, milliseconds */
  at: string;
  code: string;
  message: string;
};

export type PortTicket = {
  /** For the browser; works once */
  url: string;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type QuotaUse = {
  limit: number | null;
  /** `set`: the operator has set it for this organisation */
  source: 'default' | 'set';
  used: number;
};

export type RefreshResponse = {
  session_token: string;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type RegisterRequest = {
  email: string;
  /** 12 to 256 characters; none of the 10,000 most used passwords, and not made of the account's e-mail address */
  password: string;
  name?: string | undefined;
  invitation_token?: string | undefined;
};

/** Either `ssh_key_ids`, or `mode` with the value `account` */
export type ReplaceKeySetRequest = {
  ssh_key_ids: Array<string>;
} | {
  mode: 'account';
};

export type ReplayWebhookRequest = {
  /** RFC 3339; at most 27 days ago */
  since: string;
};

export type ReplayWebhookResponse = {
  /** How many events are sent */
  count: number;
};

export type RequestPasswordResetRequest = {
  email: string;
};

export type ResizeExecRequest = {
  columns: number;
  rows: number;
};

export type RestoreRequest = {
  generation: number;
};

export type RevokeOtherSessionsResponse = {
  count: number;
};

export type RotateApiKeyRequest = {
  /** For how long the previous secret keeps working */
  grace_seconds?: number | undefined;
};

export type RotateWebhookSecretRequest = {
  /** For how long the previous secret signs too */
  grace_seconds?: number | undefined;
};

export type Secret = {
  name: string;
  /** Host names, exact or `*.` and a domain: the value is sent to no other host. A host must also be allowed by the egress policy */
  hosts: Array<string>;
  /** False after a fork without values: the VM has no variable of this secret until it is set */
  has_value: boolean;
  /** RFC 3339, UTC, milliseconds */
  updated_at: string;
};

export type ServiceAccount = {
  id: string;
  name: string;
  /** The largest scope that its keys can have */
  scope: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
};

export type Session = {
  id: string;
  ip: string;
  user_agent: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** RFC 3339, UTC, milliseconds */
  last_seen_at: string;
  /** RFC 3339, UTC, milliseconds */
  ends_at: string;
  current: boolean;
};

export type SessionResponse = {
  user: User;
  session_token: string;
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type SetNotificationPreferencesRequest = {
  mail: {
    'vm.failed'?: boolean | undefined;
    'vm.recovered'?: boolean | undefined;
    'disk.flush_failed'?: boolean | undefined;
    'disk.nearly_full'?: boolean | undefined;
    'api_key.created'?: boolean | undefined;
    'api_key.expiring'?: boolean | undefined;
    'ssh_key.added'?: boolean | undefined;
    'account.locked'?: boolean | undefined;
    'login.new_place'?: boolean | undefined;
    'mfa.added'?: boolean | undefined;
    'mfa.removed'?: boolean | undefined;
    'password.changed'?: boolean | undefined;
    'billing_email.changed'?: boolean | undefined;
    'webhook.failing'?: boolean | undefined;
    'webhook.disabled'?: boolean | undefined;
    'org.invited'?: boolean | undefined;
    'org.role_changed'?: boolean | undefined;
  };
};

export type SetSecretRequest = {
  /** Without control characters. No response, log or audit entry contains it */
  value: string;
  /** Host names, exact or `*.` and a domain: the value is sent to no other host. A host must also be allowed by the egress policy */
  hosts: Array<string>;
};

export type SignalExecRequest = {
  signal: 'SIGABRT' | 'SIGALRM' | 'SIGBUS' | 'SIGCHLD' | 'SIGCONT' | 'SIGFPE' | 'SIGHUP' | 'SIGILL' | 'SIGINT' | 'SIGIO' | 'SIGKILL' | 'SIGPIPE' | 'SIGPROF' | 'SIGPWR' | 'SIGQUIT' | 'SIGSEGV' | 'SIGSTKFLT' | 'SIGSTOP' | 'SIGSYS' | 'SIGTERM' | 'SIGTRAP' | 'SIGTSTP' | 'SIGTTIN' | 'SIGTTOU' | 'SIGURG' | 'SIGUSR1' | 'SIGUSR2' | 'SIGVTALRM' | 'SIGWINCH' | 'SIGXCPU' | 'SIGXFSZ';
};

export type SshAddress = {
  host: string;
  port: number;
};

export type SshKey = {
  id: string;
  name: string;
  type: string;
  fingerprint: string;
  public_key: string;
  org_id: string | null;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  last_used_at: string | null;
};

export type SudoGrantRequest = {
  password: string;
};

export type SudoGrantResponse = {
  /** RFC 3339, UTC, milliseconds */
  expires_at: string;
};

export type TakeDeviceLoginRequest = {
  /** A secret of the program */
  device_code: string;
};

export type Usage = {
  /** It may be deleted */
  instance_id: string;
  /** When the hour or day begins, in UTC */
  start: string;
  /** How long a VM ran */
  running_seconds: number;
  /** Processor time of the VM, with the emulation of its devices */
  cpu_seconds: number;
  /** Memory of the running VM, times hours */
  memory_gib_hours: number;
  /** Bytes in object storage, times hours; shared ones count for each instance */
  stored_gib_hours: number;
  /** Written by the guest and saved to object storage */
  flushed_bytes: number;
  /** Passed by HTTP ports, in both directions */
  http_bytes: number;
};

export type User = {
  id: string;
  email: string;
  name: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  mfa_enabled: boolean;
  /** The account has a password, and this Berth takes passwords */
  password_login: boolean;
  /** The account is linked to the OpenID provider */
  oidc_login: boolean;
  /** While false, the account can have no API or SSH keys and accept no invitation */
  email_confirmed: boolean;
};

export type VerifyMfaFactorRequest = {
  /** Six digits */
  code: string;
} | {
  id: string;
  rawId: string;
  type: 'public-key';
  authenticatorAttachment?: string | null | undefined;
  clientExtensionResults?: {
    [more: string]: unknown;
  } | undefined;
  response: {
    clientDataJSON: string;
    attestationObject: string;
    [more: string]: unknown;
  };
};

export type VerifyMfaFactorResponse = {
  /** Shown only once; each is valid for one login. null: the account already has codes, which stay valid */
  recovery_codes: Array<string> | null;
};

export type Vm = {
  id: string | null;
  instance_id: string;
  state: VmState;
  /** Counts starts; a soft reboot is not one */
  boot: number;
  host_id: string | null;
  started_at: string | null;
  stopped_at: string | null;
  reason: VmReason | null;
  disk: Disk;
};

export type VmMetrics = {
  now: MetricsSample;
  interval_seconds: number;
  /** The last hour, oldest first */
  samples: Array<MetricsSample>;
};

export type VmReason = {
  code: string;
  message: string;
  actor: string;
};

export type VmState = 'starting' | 'running' | 'restarting' | 'suspending' | 'suspended' | 'stopping' | 'stopped' | 'failed';

export type Webhook = {
  id: string;
  url: string;
  events: Array<string>;
  name: string;
  status: 'enabled' | 'disabled';
  disabled_reason: string | null;
  disabled_at: string | null;
  failing_since: string | null;
  proven_at: string | null;
  previous_secret_expires_at: string | null;
  created_by: string;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** RFC 3339, UTC, milliseconds */
  updated_at: string;
};

export type WebhookAttempt = {
  number: number;
  /** RFC 3339, UTC, milliseconds */
  at: string;
  status: number | null;
  latency_ms: number;
  error: string | null;
  /** The first 4 KiB of the answer */
  response: string;
};

export type WebhookAttemptDetail = {
  number: number;
  /** RFC 3339, UTC, milliseconds */
  at: string;
  status: number | null;
  latency_ms: number;
  error: string | null;
  /** The first 4 KiB of the answer */
  response: string;
  url: string;
  /** The first 2 KiB of the headers of the answer, without cookies */
  response_headers: Record<string, string>;
};

export type WebhookDelivery = {
  id: string;
  /** The `webhook-id` of each attempt */
  event_id: string;
  event_type: string | null;
  /** What the event is about; null: the event is older than 30 days */
  resource: EventResource | null;
  instance_id: string | null;
  status: 'pending' | 'delivered' | 'failed';
  attempt_count: number;
  next_attempt_at: string | null;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** The last ten, oldest first; kept for 14 days */
  attempts: Array<WebhookAttempt>;
};

export type WebhookDeliveryDetail = {
  id: string;
  /** The `webhook-id` of each attempt */
  event_id: string;
  event_type: string | null;
  /** What the event is about; null: the event is older than 30 days */
  resource: EventResource | null;
  instance_id: string | null;
  status: 'pending' | 'delivered' | 'failed';
  attempt_count: number;
  next_attempt_at: string | null;
  /** RFC 3339, UTC, milliseconds */
  created_at: string;
  /** The last ten, oldest first; kept for 14 days */
  attempts: Array<WebhookAttemptDetail>;
  /** The request of the last attempt; before the first, as it would be sent now; null: the event is older than 30 days */
  request: WebhookRequest | null;
};

export type WebhookRequest = {
  method: 'POST';
  url: string;
  /** Signed with the present secret; after a rotation, earlier attempts had another signature */
  headers: Record<string, string>;
  /** The exact bytes */
  body: string;
};

export interface Operations {
  /** Create an account; needs open sign-ups or an invitation */
  register: {
    input: { body: RegisterRequest };
    answer: SessionResponse;
  };
  /** Open a session */
  login: {
    input: { body: LoginRequest };
    answer: SessionResponse;
  };
  /** Get a new session token with the cookie __Host-berth_refresh, which is replaced */
  refresh: {
    input: { body?: EmptyRequest | undefined };
    answer: RefreshResponse;
  };
  /** End this session */
  logout: {
    input: { body?: EmptyRequest | undefined };
    answer: undefined;
  };
  /** Change the password; the other sessions end */
  changePassword: {
    input: { body: ChangePasswordRequest };
    answer: undefined;
  };
  /** Mail a reset token to the address, if it has an account */
  requestPasswordReset: {
    input: { body: RequestPasswordResetRequest };
    answer: undefined;
  };
  /** Set a new password with the mailed token; every session ends */
  confirmPasswordReset: {
    input: { body: ConfirmPasswordResetRequest };
    answer: undefined;
  };
  /** Begin a sudo grant by a new login at the OpenID provider */
  beginOidcSudo: {
    input: { body?: BeginOidcSudoRequest | undefined };
    answer: OidcSudoStart;
  };
  /** Begin a login that a person confirms in the console */
  askForDeviceLogin: {
    input: { body?: AskForDeviceLoginRequest | undefined };
    answer: DeviceLoginStart;
  };
  /** Open the session of a confirmed login, once */
  takeDeviceLogin: {
    input: { body: TakeDeviceLoginRequest };
    answer: SessionResponse;
  };
  /** Who asks for a login */
  getDeviceLogin: {
    input: { path: { user_code: string } };
    answer: DeviceLogin;
  };
  /** Refuse a login */
  refuseDeviceLogin: {
    input: { path: { user_code: string } };
    answer: undefined;
  };
  /** Let the program that shows this code log in as the caller */
  confirmDeviceLogin: {
    input: { path: { user_code: string }; body?: EmptyRequest | undefined };
    answer: undefined;
  };
  /** Re-enter the password, which allows this session destructive calls for five minutes */
  grantSudo: {
    input: { body: SudoGrantRequest };
    answer: SudoGrantResponse;
  };
  /** List the caller's sessions */
  listSessions: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListSessionsResponse;
  };
  /** End all of the caller's sessions but this one */
  revokeOtherSessions: {
    input: Record<string, never>;
    answer: RevokeOtherSessionsResponse;
  };
  /** End a session */
  revokeSession: {
    input: { path: { id: string } };
    answer: undefined;
  };
  /** Get the caller's account */
  getMe: {
    input: Record<string, never>;
    answer: User;
  };
  /** Change the caller's name */
  changeMe: {
    input: { body?: ChangeMeRequest | undefined };
    answer: User;
  };
  /** Delete the account and the organisations that only it belongs to */
  deleteMe: {
    input: Record<string, never>;
    answer: undefined;
  };
  /** Change the address; it takes effect when the token sent there is confirmed */
  changeEmail: {
    input: { body: ChangeEmailRequest };
    answer: undefined;
  };
  /** Confirm the first or a new address with the token sent there */
  confirmEmail: {
    input: { body: ConfirmEmailRequest };
    answer: undefined;
  };
  /** List the caller's SSH keys; for an API key, those that grant access in its organisation */
  listSshKeys: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListSshKeysResponse;
  };
  /** Register an SSH key; one that an API key registers belongs to the API key's organisation */
  addSshKey: {
    input: { body: AddSshKeyRequest };
    answer: SshKey;
  };
  /** Revoke an SSH key */
  revokeSshKey: {
    input: { path: { id: string } };
    answer: undefined;
  };
  /** List the caller's second factors */
  listMfaFactors: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListMfaFactorsResponse;
  };
  /** Add a second factor; confirm it within the hour */
  addMfaFactor: {
    input: { body: AddMfaFactorRequest };
    answer: AddMfaFactorResponse;
  };
  /** Confirm a second factor with its code, or with the browser's answer to its options */
  verifyMfaFactor: {
    input: { path: { id: string }; body: VerifyMfaFactorRequest };
    answer: VerifyMfaFactorResponse;
  };
  /** Remove a second factor; with the last one the recovery codes are removed */
  removeMfaFactor: {
    input: { path: { id: string } };
    answer: undefined;
  };
  /** Get the options for a login with a passkey, alone or after the password */
  passkeyOptions: {
    input: { body?: PasskeyOptionsRequest | undefined };
    answer: PasskeyOptionsResponse;
  };
  /** Open a session with a passkey alone */
  loginByPasskey: {
    input: { body: LoginByPasskeyRequest };
    answer: SessionResponse;
  };
  /** Create an API key */
  createApiKey: {
    input: { body: CreateApiKeyRequest };
    answer: CreateApiKeyResponse;
  };
  /** List the caller's API keys; for owners and admins, also those of service accounts */
  listApiKeys: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined; service_account_id?: string | undefined } | undefined };
    answer: ListApiKeysResponse;
  };
  /** Get an API key, without the key itself */
  getApiKey: {
    input: { path: { id: string } };
    answer: ApiKey;
  };
  /** Revoke an API key at once */
  revokeApiKey: {
    input: { path: { id: string }; query?: { descendants?: 'true' | 'false' | undefined } | undefined };
    answer: undefined;
  };
  /** Rotate an API key: give it a new secret under the same id */
  rotateApiKey: {
    input: { path: { id: string }; body?: RotateApiKeyRequest | undefined };
    answer: CreateApiKeyResponse;
  };
  /** List the organisation's service accounts */
  listServiceAccounts: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListServiceAccountsResponse;
  };
  /** Create a service account: a holder of API keys that is not a person */
  createServiceAccount: {
    input: { body: CreateServiceAccountRequest };
    answer: ServiceAccount;
  };
  /** Get a service account */
  getServiceAccount: {
    input: { path: { id: string } };
    answer: ServiceAccount;
  };
  /** Delete a service account; its keys end at once */
  deleteServiceAccount: {
    input: { path: { id: string } };
    answer: undefined;
  };
  /** List the organisations of the caller, the last joined first */
  listOrgs: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListOrgsResponse;
  };
  /** Create an organisation that the caller owns */
  createOrg: {
    input: { body: CreateOrgRequest };
    answer: Org;
  };
  /** Get an organisation */
  getOrg: {
    input: { path: { id: string } };
    answer: Org;
  };
  /** Rename an organisation */
  changeOrg: {
    input: { path: { id: string }; body?: ChangeOrgRequest | undefined };
    answer: Org;
  };
  /** Get the quotas of an organisation and their use */
  getOrgQuota: {
    input: { path: { id: string } };
    answer: OrgQuota;
  };
  /** Change the billing address; the old and the new address get a mail */
  changeBillingEmail: {
    input: { path: { id: string }; body: ChangeBillingEmailRequest };
    answer: Org;
  };
  /** Get the state of the installation: findings, storage, mail */
  getOperatorStatus: {
    input: Record<string, never>;
    answer: OperatorStatus;
  };
  /** List the hosts, by name */
  listOperatorHosts: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListOperatorHostsResponse;
  };
  /** List the stored versions of images, by image, newest first */
  listOperatorImages: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListOperatorImagesResponse;
  };
  /** List all organisations with their quotas and what they use */
  listOperatorOrganisations: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListOperatorOrganisationsResponse;
  };
  /** List the members of an organisation, the newest first */
  listMembers: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListMembersResponse;
  };
  /** Get a member; any member may get their own membership */
  getMember: {
    input: { path: { id: string; user_id: string } };
    answer: Member;
  };
  /** Change the role of a member; only owners make and unmake owners */
  changeMember: {
    input: { path: { id: string; user_id: string }; body: ChangeMemberRequest };
    answer: Member;
  };
  /** Remove a member, or leave the organisation */
  removeMember: {
    input: { path: { id: string; user_id: string } };
    answer: undefined;
  };
  /** Invite an address; the mailed token works once, within 7 days */
  createInvitation: {
    input: { path: { id: string }; body: CreateInvitationRequest };
    answer: Invitation;
  };
  /** List the invitations that are open */
  listInvitations: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListInvitationsResponse;
  };
  /** Withdraw an invitation */
  deleteInvitation: {
    input: { path: { id: string; invitation_id: string } };
    answer: undefined;
  };
  /** Accept an invitation to the account's address, and join its organisation */
  acceptInvitation: {
    input: { body: AcceptInvitationRequest };
    answer: Org;
  };
  /** List the audit log: who did what, when and from where */
  listAudit: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined; action?: string | undefined; since?: string | undefined; until?: string | undefined; actor?: string | undefined } | undefined };
    answer: ListAuditResponse;
  };
  /** List the images for instances, by name */
  listImages: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListImagesResponse;
  };
  /** Create an instance */
  createInstance: {
    input: { body: CreateInstanceRequest };
    answer: Instance;
  };
  /** List the organisation's instances */
  listInstances: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined; name?: string | undefined; label?: Array<string> | undefined; state?: VmState | undefined } | undefined };
    answer: ListInstancesResponse;
  };
  /** Get an instance */
  getInstance: {
    input: { path: { id: string } };
    answer: Instance;
  };
  /** Change an instance */
  changeInstance: {
    input: { path: { id: string }; body?: ChangeInstanceRequest | undefined };
    answer: Instance;
  };
  /** Delete an instance and its disk */
  deleteInstance: {
    input: { path: { id: string } };
    answer: Instance;
  };
  /** List the generations of the disk, which can be restored or forked */
  listGenerations: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListGenerationsResponse;
  };
  /** Name or pin a generation */
  changeGeneration: {
    input: { path: { id: string; generation: string }; body?: ChangeGenerationRequest | undefined };
    answer: Generation;
  };
  /** Restore an older generation, as a new one; the VM must be stopped */
  restoreInstance: {
    input: { path: { id: string }; body: RestoreRequest };
    answer: Instance;
  };
  /** Fork an instance: create one whose disk begins as a generation of this one */
  forkInstance: {
    input: { path: { id: string }; body: ForkRequest };
    answer: Instance;
  };
  /** Get the VM; with `wait`, once it reaches that state, fails, or the timeout passes */
  getVm: {
    input: { path: { id: string }; query?: { wait?: 'running' | 'stopped' | 'suspended' | undefined; timeout_seconds?: number | undefined } | undefined };
    answer: Vm;
  };
  /** Start the VM */
  startVm: {
    input: { path: { id: string }; body?: EmptyRequest | undefined };
    answer: Vm;
  };
  /** Stop the VM; its disk persists */
  stopVm: {
    input: { path: { id: string }; query?: { force?: 'true' | 'false' | undefined } | undefined };
    answer: Vm;
  };
  /** Reboot the guest; the VM and its disk stay, and nothing is flushed */
  restartVm: {
    input: { path: { id: string }; body?: EmptyRequest | undefined };
    answer: Vm;
  };
  /** Save memory and disk, then end the VM; the next start resumes it */
  suspendVm: {
    input: { path: { id: string }; body?: EmptyRequest | undefined };
    answer: Vm;
  };
  /** Flush the disk: make everything written so far durable */
  flushVm: {
    input: { path: { id: string }; body?: EmptyRequest | undefined };
    answer: FlushReceipt;
  };
  /** Get the end of the serial console log */
  getConsoleLog: {
    input: { path: { id: string }; query?: { tail_kib?: number | undefined; timestamps?: 'true' | 'false' | undefined } | undefined };
    answer: string;
  };
  /** Create a ticket for the live serial console */
  createConsoleTicket: {
    input: { path: { id: string }; body?: EmptyRequest | undefined };
    answer: ConsoleTicket;
  };
  /** List what the VM was denied to reach */
  listDeniedEgress: {
    input: { path: { id: string } };
    answer: ListDeniedEgressResponse;
  };
  /** Run a command in the guest as root, and wait until it ends */
  execInVm: {
    input: { path: { id: string }; body: ExecRequest };
    answer: ExecResult;
  };
  /** Run a command in the guest, which goes on without its caller */
  createExec: {
    input: { path: { id: string }; body: CreateExecRequest };
    answer: Exec;
  };
  /** List an instance's execs: all that run, and the last 100 that have ended */
  listExecs: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListExecsResponse;
  };
  /** Get an exec */
  getExec: {
    input: { path: { id: string; exec_id: string } };
    answer: Exec;
  };
  /** End an exec: SIGKILL to its process group; its record stays */
  killExec: {
    input: { path: { id: string; exec_id: string } };
    answer: undefined;
  };
  /** Send a signal to the process group of an exec */
  signalExec: {
    input: { path: { id: string; exec_id: string }; body: SignalExecRequest };
    answer: undefined;
  };
  /** Set the size of the terminal of an exec */
  resizeExec: {
    input: { path: { id: string; exec_id: string }; body: ResizeExecRequest };
    answer: undefined;
  };
  /** Create a ticket for a stream to an exec */
  createExecTicket: {
    input: { path: { id: string; exec_id: string }; body?: EmptyRequest | undefined };
    answer: ExecTicket;
  };
  /** Get the output of an exec; with `follow`, as it comes */
  getExecOutput: {
    input: { path: { id: string; exec_id: string }; query?: { offset?: number | undefined; stream?: 'stdout' | 'stderr' | undefined; follow?: 'true' | 'false' | undefined } | undefined };
    answer: string;
  };
  /** Send bytes to the input of an exec, and with `eof=true` its end */
  writeExecInput: {
    input: { path: { id: string; exec_id: string }; query?: { eof?: 'true' | 'false' | undefined } | undefined; body?: RawBody | undefined };
    answer: undefined;
  };
  /** List the entries of a folder, sorted by name */
  listFiles: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined; path: string } | undefined };
    answer: ListFilesResponse;
  };
  /** Delete a file, a link or a folder */
  deleteFile: {
    input: { path: { id: string }; query?: { path: string; recursive?: 'true' | 'false' | undefined } | undefined };
    answer: undefined;
  };
  /** Read a file of the guest */
  readFile: {
    input: { path: { id: string }; query?: { path: string } | undefined };
    answer: string;
  };
  /** Write a file of the guest */
  writeFile: {
    input: { path: { id: string }; query?: { path: string; mode?: string | undefined; user?: string | undefined } | undefined; body?: RawBody | undefined };
    answer: File;
  };
  /** Move or rename a file, a link or a folder */
  moveFile: {
    input: { path: { id: string }; body: MoveFileRequest };
    answer: File;
  };
  /** Make a folder, and the missing ones above it */
  createDirectory: {
    input: { path: { id: string }; body: CreateDirectoryRequest };
    answer: File;
  };
  /** Get the resource usage of the VM, now and over the last hour */
  getVmMetrics: {
    input: { path: { id: string } };
    answer: VmMetrics;
  };
  /** Get the history of the instance's resource usage */
  getMetricHistory: {
    input: { path: { id: string }; query?: { range?: '1h' | '6h' | '24h' | '7d' | '30d' | undefined } | undefined };
    answer: MetricHistory;
  };
  /** Get the SSH connection details of the running VM */
  getSsh: {
    input: { path: { id: string } };
    answer: ConnectionDetails;
  };
  /** Get the key set of the instance: the SSH keys that may log in */
  getKeySet: {
    input: { path: { id: string } };
    answer: KeySet;
  };
  /** Replace the key set of the instance */
  replaceKeySet: {
    input: { path: { id: string }; body: ReplaceKeySetRequest };
    answer: KeySet;
  };
  /** List the SSH keys of an organisation's members, which a key set can hold */
  listOrgSshKeys: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListOrgSshKeysResponse;
  };
  /** Publish a port of the guest under a URL */
  createPort: {
    input: { path: { id: string }; body: CreatePortRequest };
    answer: Port;
  };
  /** List an instance's HTTP ports */
  listPorts: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListPortsResponse;
  };
  /** Get an HTTP port */
  getPort: {
    input: { path: { id: string; port_id: string } };
    answer: Port;
  };
  /** Change who has access to an HTTP port */
  changePort: {
    input: { path: { id: string; port_id: string }; body?: ChangePortRequest | undefined };
    answer: Port;
  };
  /** Delete an HTTP port; its hostname is never assigned again */
  deletePort: {
    input: { path: { id: string; port_id: string } };
    answer: undefined;
  };
  /** Get a URL that opens a private port in a browser */
  openPort: {
    input: { path: { id: string; port_id: string }; body?: OpenPortRequest | undefined };
    answer: PortTicket;
  };
  /** Add a hostname of your own to an HTTP port */
  addPortHostname: {
    input: { path: { id: string; port_id: string }; body: AddHostnameRequest };
    answer: CustomHostname;
  };
  /** Remove a hostname of your own from an HTTP port */
  deletePortHostname: {
    input: { path: { id: string; port_id: string; hostname: string } };
    answer: undefined;
  };
  /** Create a secret, or replace its value and hosts */
  setSecret: {
    input: { path: { id: string; name: string }; body: SetSecretRequest };
    answer: undefined;
  };
  /** Delete a secret; new sessions do not have its variable */
  deleteSecret: {
    input: { path: { id: string; name: string } };
    answer: undefined;
  };
  /** List an instance's secrets, without values */
  listSecrets: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListSecretsResponse;
  };
  /** Create a webhook; this sends nothing */
  createWebhook: {
    input: { body: CreateWebhookRequest };
    answer: CreateWebhookResponse;
  };
  /** List the organisation's webhooks */
  listWebhooks: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined } | undefined };
    answer: ListWebhooksResponse;
  };
  /** Get a webhook, without its secret */
  getWebhook: {
    input: { path: { id: string } };
    answer: Webhook;
  };
  /** Change, disable or enable a webhook */
  changeWebhook: {
    input: { path: { id: string }; body?: ChangeWebhookRequest | undefined };
    answer: Webhook;
  };
  /** Delete a webhook and its deliveries */
  deleteWebhook: {
    input: { path: { id: string } };
    answer: undefined;
  };
  /** Rotate the secret of a webhook; for a grace period both sign */
  rotateWebhookSecret: {
    input: { path: { id: string }; body?: RotateWebhookSecretRequest | undefined };
    answer: CreateWebhookResponse;
  };
  /** List the deliveries of a webhook, the newest events first */
  listWebhookDeliveries: {
    input: { path: { id: string }; query?: { limit?: number | undefined; cursor?: string | undefined; status?: 'pending' | 'delivered' | 'failed' | undefined } | undefined };
    answer: ListWebhookDeliveriesResponse;
  };
  /** Get a delivery with its request and the answer to each attempt */
  getWebhookDelivery: {
    input: { path: { id: string; delivery_id: string } };
    answer: WebhookDeliveryDetail;
  };
  /** Send the event `webhook.ping` to this webhook */
  pingWebhook: {
    input: { path: { id: string }; body?: EmptyRequest | undefined };
    answer: PingWebhookResponse;
  };
  /** Redeliver: send a delivery again with the same `webhook-id`, whatever its outcome was */
  redeliverWebhookDelivery: {
    input: { path: { id: string; delivery_id: string }; body?: EmptyRequest | undefined };
    answer: WebhookDelivery;
  };
  /** Send every event since a time again, including those missed while disabled */
  replayWebhook: {
    input: { path: { id: string }; body: ReplayWebhookRequest };
    answer: ReplayWebhookResponse;
  };
  /** List the caller's notifications; for an API key, those about its creator's account or its organisation */
  listNotifications: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined; status?: 'unread' | 'read' | undefined } | undefined };
    answer: ListNotificationsResponse;
  };
  /** Count the unread notifications */
  countUnreadNotifications: {
    input: Record<string, never>;
    answer: CountUnreadNotificationsResponse;
  };
  /** Mark a notification as read or unread */
  markNotification: {
    input: { path: { id: string }; body: MarkNotificationRequest };
    answer: Notification;
  };
  /** Mark all present notifications as read, or those up to `before` */
  markAllNotifications: {
    input: { body?: MarkAllNotificationsRequest | undefined };
    answer: MarkAllNotificationsResponse;
  };
  /** Get which kinds of notifications are also mailed to the caller */
  getNotificationPreferences: {
    input: Record<string, never>;
    answer: NotificationPreferences;
  };
  /** Choose which kinds are also mailed; kinds that are not named are, and security kinds always are */
  setNotificationPreferences: {
    input: { body: SetNotificationPreferencesRequest };
    answer: NotificationPreferences;
  };
  /** Stream the caller's notifications as they are raised, and the unread count */
  streamNotifications: {
    input: Record<string, never>;
    answer: string;
  };
  /** List what the organisation's instances used */
  listUsage: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined; from?: string | undefined; to?: string | undefined; interval?: 'hour' | 'day' | undefined; instance?: string | undefined } | undefined };
    answer: ListUsageResponse;
  };
  /** List the organisation's events of the last 30 days */
  listEvents: {
    input: { query?: { limit?: number | undefined; cursor?: string | undefined; type?: 'instance.created' | 'instance.deleted' | 'instance.forked' | 'instance.restored' | 'instance.ssh_keys_replaced' | 'vm.started' | 'vm.stopped' | 'vm.suspended' | 'vm.restarted' | 'vm.failed' | 'vm.recovered' | 'disk.flushed' | 'disk.flush_failed' | 'egress.denied' | 'port.created' | 'port.changed' | 'port.deleted' | 'ssh_key.added' | 'ssh_key.revoked' | 'api_key.created' | 'api_key.rotated' | 'api_key.revoked' | 'member.added' | 'member.removed' | 'member.role_changed' | 'webhook.disabled' | 'webhook.ping' | undefined; resource?: string | undefined; since?: string | undefined; until?: string | undefined; actor?: string | undefined } | undefined };
    answer: ListEventsResponse;
  };
  /** Stream the organisation's events as they happen */
  streamEvents: {
    input: { query?: { type?: 'instance.created' | 'instance.deleted' | 'instance.forked' | 'instance.restored' | 'instance.ssh_keys_replaced' | 'vm.started' | 'vm.stopped' | 'vm.suspended' | 'vm.restarted' | 'vm.failed' | 'vm.recovered' | 'disk.flushed' | 'disk.flush_failed' | 'egress.denied' | 'port.created' | 'port.changed' | 'port.deleted' | 'ssh_key.added' | 'ssh_key.revoked' | 'api_key.created' | 'api_key.rotated' | 'api_key.revoked' | 'member.added' | 'member.removed' | 'member.role_changed' | 'webhook.disabled' | 'webhook.ping' | undefined; resource?: string | undefined } | undefined };
    answer: string;
  };
}
export const OPERATIONS = {
  register: { method: 'POST', path: '/v1/auth/register', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  login: { method: 'POST', path: '/v1/auth/login', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  refresh: { method: 'POST', path: '/v1/auth/refresh', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  logout: { method: 'POST', path: '/v1/auth/logout', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changePassword: { method: 'POST', path: '/v1/auth/password', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  requestPasswordReset: { method: 'POST', path: '/v1/auth/password-reset', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  confirmPasswordReset: { method: 'POST', path: '/v1/auth/password-reset/confirm', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  beginOidcSudo: { method: 'POST', path: '/v1/auth/oidc/sudo', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  askForDeviceLogin: { method: 'POST', path: '/v1/auth/device-logins', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  takeDeviceLogin: { method: 'POST', path: '/v1/auth/device-logins/token', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getDeviceLogin: { method: 'GET', path: '/v1/auth/device-logins/{user_code}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  refuseDeviceLogin: { method: 'DELETE', path: '/v1/auth/device-logins/{user_code}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  confirmDeviceLogin: { method: 'POST', path: '/v1/auth/device-logins/{user_code}/confirm', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  grantSudo: { method: 'POST', path: '/v1/auth/sudo', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listSessions: { method: 'GET', path: '/v1/auth/sessions', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  revokeOtherSessions: { method: 'DELETE', path: '/v1/auth/sessions', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  revokeSession: { method: 'DELETE', path: '/v1/auth/sessions/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getMe: { method: 'GET', path: '/v1/me', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeMe: { method: 'PATCH', path: '/v1/me', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteMe: { method: 'DELETE', path: '/v1/me', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeEmail: { method: 'PUT', path: '/v1/me/email', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  confirmEmail: { method: 'POST', path: '/v1/me/email/confirm', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listSshKeys: { method: 'GET', path: '/v1/me/ssh-keys', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  addSshKey: { method: 'POST', path: '/v1/me/ssh-keys', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  revokeSshKey: { method: 'DELETE', path: '/v1/me/ssh-keys/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listMfaFactors: { method: 'GET', path: '/v1/me/mfa/factors', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  addMfaFactor: { method: 'POST', path: '/v1/me/mfa/factors', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  verifyMfaFactor: { method: 'POST', path: '/v1/me/mfa/factors/{id}/verify', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  removeMfaFactor: { method: 'DELETE', path: '/v1/me/mfa/factors/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  passkeyOptions: { method: 'POST', path: '/v1/auth/passkey/options', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  loginByPasskey: { method: 'POST', path: '/v1/auth/passkey', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createApiKey: { method: 'POST', path: '/v1/api-keys', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listApiKeys: { method: 'GET', path: '/v1/api-keys', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getApiKey: { method: 'GET', path: '/v1/api-keys/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  revokeApiKey: { method: 'DELETE', path: '/v1/api-keys/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  rotateApiKey: { method: 'POST', path: '/v1/api-keys/{id}/rotate', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listServiceAccounts: { method: 'GET', path: '/v1/service-accounts', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createServiceAccount: { method: 'POST', path: '/v1/service-accounts', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  getServiceAccount: { method: 'GET', path: '/v1/service-accounts/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteServiceAccount: { method: 'DELETE', path: '/v1/service-accounts/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listOrgs: { method: 'GET', path: '/v1/orgs', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createOrg: { method: 'POST', path: '/v1/orgs', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  getOrg: { method: 'GET', path: '/v1/orgs/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeOrg: { method: 'PATCH', path: '/v1/orgs/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getOrgQuota: { method: 'GET', path: '/v1/orgs/{id}/quota', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeBillingEmail: { method: 'PUT', path: '/v1/orgs/{id}/billing-email', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getOperatorStatus: { method: 'GET', path: '/v1/operator', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listOperatorHosts: { method: 'GET', path: '/v1/operator/hosts', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listOperatorImages: { method: 'GET', path: '/v1/operator/images', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listOperatorOrganisations: { method: 'GET', path: '/v1/operator/organisations', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listMembers: { method: 'GET', path: '/v1/orgs/{id}/members', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getMember: { method: 'GET', path: '/v1/orgs/{id}/members/{user_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeMember: { method: 'PATCH', path: '/v1/orgs/{id}/members/{user_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  removeMember: { method: 'DELETE', path: '/v1/orgs/{id}/members/{user_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createInvitation: { method: 'POST', path: '/v1/orgs/{id}/invitations', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listInvitations: { method: 'GET', path: '/v1/orgs/{id}/invitations', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteInvitation: { method: 'DELETE', path: '/v1/orgs/{id}/invitations/{invitation_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  acceptInvitation: { method: 'POST', path: '/v1/invitations/accept', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listAudit: { method: 'GET', path: '/v1/audit', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listImages: { method: 'GET', path: '/v1/images', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createInstance: { method: 'POST', path: '/v1/instances', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listInstances: { method: 'GET', path: '/v1/instances', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getInstance: { method: 'GET', path: '/v1/instances/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeInstance: { method: 'PATCH', path: '/v1/instances/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteInstance: { method: 'DELETE', path: '/v1/instances/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listGenerations: { method: 'GET', path: '/v1/instances/{id}/generations', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeGeneration: { method: 'PATCH', path: '/v1/instances/{id}/generations/{generation}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  restoreInstance: { method: 'POST', path: '/v1/instances/{id}/restore', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  forkInstance: { method: 'POST', path: '/v1/instances/{id}/fork', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  getVm: { method: 'GET', path: '/v1/instances/{id}/vm', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  startVm: { method: 'POST', path: '/v1/instances/{id}/vm', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  stopVm: { method: 'DELETE', path: '/v1/instances/{id}/vm', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  restartVm: { method: 'POST', path: '/v1/instances/{id}/vm/restart', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  suspendVm: { method: 'POST', path: '/v1/instances/{id}/vm/suspend', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  flushVm: { method: 'POST', path: '/v1/instances/{id}/vm/flush', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  getConsoleLog: { method: 'GET', path: '/v1/instances/{id}/vm/console', takes_idempotency_key: false, takes_bytes: false, answers_text: true },
  createConsoleTicket: { method: 'POST', path: '/v1/instances/{id}/vm/console/ticket', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listDeniedEgress: { method: 'GET', path: '/v1/instances/{id}/vm/egress/denied', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  execInVm: { method: 'POST', path: '/v1/instances/{id}/vm/exec', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createExec: { method: 'POST', path: '/v1/instances/{id}/execs', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listExecs: { method: 'GET', path: '/v1/instances/{id}/execs', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getExec: { method: 'GET', path: '/v1/instances/{id}/execs/{exec_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  killExec: { method: 'DELETE', path: '/v1/instances/{id}/execs/{exec_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  signalExec: { method: 'POST', path: '/v1/instances/{id}/execs/{exec_id}/signal', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  resizeExec: { method: 'POST', path: '/v1/instances/{id}/execs/{exec_id}/resize', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createExecTicket: { method: 'POST', path: '/v1/instances/{id}/execs/{exec_id}/ticket', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getExecOutput: { method: 'GET', path: '/v1/instances/{id}/execs/{exec_id}/output', takes_idempotency_key: false, takes_bytes: false, answers_text: true },
  writeExecInput: { method: 'POST', path: '/v1/instances/{id}/execs/{exec_id}/stdin', takes_idempotency_key: false, takes_bytes: true, answers_text: false },
  listFiles: { method: 'GET', path: '/v1/instances/{id}/files/list', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteFile: { method: 'DELETE', path: '/v1/instances/{id}/files', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  readFile: { method: 'GET', path: '/v1/instances/{id}/files', takes_idempotency_key: false, takes_bytes: false, answers_text: true },
  writeFile: { method: 'PUT', path: '/v1/instances/{id}/files', takes_idempotency_key: false, takes_bytes: true, answers_text: false },
  moveFile: { method: 'POST', path: '/v1/instances/{id}/files/move', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createDirectory: { method: 'POST', path: '/v1/instances/{id}/files/directory', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getVmMetrics: { method: 'GET', path: '/v1/instances/{id}/vm/metrics', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getMetricHistory: { method: 'GET', path: '/v1/instances/{id}/metrics', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getSsh: { method: 'GET', path: '/v1/instances/{id}/ssh', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getKeySet: { method: 'GET', path: '/v1/instances/{id}/ssh-keys', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  replaceKeySet: { method: 'PUT', path: '/v1/instances/{id}/ssh-keys', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listOrgSshKeys: { method: 'GET', path: '/v1/orgs/{id}/ssh-keys', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createPort: { method: 'POST', path: '/v1/instances/{id}/ports', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listPorts: { method: 'GET', path: '/v1/instances/{id}/ports', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getPort: { method: 'GET', path: '/v1/instances/{id}/ports/{port_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changePort: { method: 'PATCH', path: '/v1/instances/{id}/ports/{port_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deletePort: { method: 'DELETE', path: '/v1/instances/{id}/ports/{port_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  openPort: { method: 'POST', path: '/v1/instances/{id}/ports/{port_id}/open', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  addPortHostname: { method: 'POST', path: '/v1/instances/{id}/ports/{port_id}/hostnames', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  deletePortHostname: { method: 'DELETE', path: '/v1/instances/{id}/ports/{port_id}/hostnames/{hostname}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  setSecret: { method: 'PUT', path: '/v1/instances/{id}/secrets/{name}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteSecret: { method: 'DELETE', path: '/v1/instances/{id}/secrets/{name}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listSecrets: { method: 'GET', path: '/v1/instances/{id}/secrets', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  createWebhook: { method: 'POST', path: '/v1/webhooks', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listWebhooks: { method: 'GET', path: '/v1/webhooks', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getWebhook: { method: 'GET', path: '/v1/webhooks/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  changeWebhook: { method: 'PATCH', path: '/v1/webhooks/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  deleteWebhook: { method: 'DELETE', path: '/v1/webhooks/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  rotateWebhookSecret: { method: 'POST', path: '/v1/webhooks/{id}/rotate-secret', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listWebhookDeliveries: { method: 'GET', path: '/v1/webhooks/{id}/deliveries', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getWebhookDelivery: { method: 'GET', path: '/v1/webhooks/{id}/deliveries/{delivery_id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  pingWebhook: { method: 'POST', path: '/v1/webhooks/{id}/ping', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  redeliverWebhookDelivery: { method: 'POST', path: '/v1/webhooks/{id}/deliveries/{delivery_id}/redeliver', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  replayWebhook: { method: 'POST', path: '/v1/webhooks/{id}/replay', takes_idempotency_key: true, takes_bytes: false, answers_text: false },
  listNotifications: { method: 'GET', path: '/v1/notifications', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  countUnreadNotifications: { method: 'GET', path: '/v1/notifications/unread-count', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  markNotification: { method: 'PATCH', path: '/v1/notifications/{id}', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  markAllNotifications: { method: 'POST', path: '/v1/notifications/read-all', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  getNotificationPreferences: { method: 'GET', path: '/v1/notifications/preferences', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  setNotificationPreferences: { method: 'PUT', path: '/v1/notifications/preferences', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  streamNotifications: { method: 'GET', path: '/v1/notifications/stream', takes_idempotency_key: false, takes_bytes: false, answers_text: true },
  listUsage: { method: 'GET', path: '/v1/usage', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  listEvents: { method: 'GET', path: '/v1/events', takes_idempotency_key: false, takes_bytes: false, answers_text: false },
  streamEvents: { method: 'GET', path: '/v1/events/stream', takes_idempotency_key: false, takes_bytes: false, answers_text: true },
} as const;
