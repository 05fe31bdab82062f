/**
 * The types of the tables. Made by `node test/support/write-schema.ts` from a migrated database; do not edit.
 * Shapes of JSON: column-types.ts. What only code knows of a column: test/support/table-types.ts.
 */
import type { HostFacts } from '../../protocol/host-types.ts';
import type { HostKey, MapRef, MemoryRef, SegmentRef, VmReasonCode } from '../../protocol/types.ts';
import type { ApiKeyId, AuditId, EventId, ExecId, FlushId, HostId, HttpPortId, IngressId, InstanceId, InvitationId, MailId, MfaFactorId, NotificationId, OrgId, ServiceAccountId, SessionId, SshKeyId, UserId, VmId, WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';
import type { OwnQuotas } from '../../shared/quotas.ts';
import type { TraceContext } from '../../shared/tracing.ts';
import type { ForkedFrom, GenerationOrigin, HttpError, StoredCredential } from './column-types.ts';
import type { ColumnType, Generated, GeneratedAlways } from 'kysely';

export interface Database {
  /** API keys. Each belongs to a member or to a service account of its organisation. */
  api_keys: {
    id: ApiKeyId;
    org_id: OrgId;
    /** The member whose key it is. Null: a service account has it. */
    user_id: UserId | null;
    /** The service account whose key it is. Null: a member has it. */
    service_account_id: ServiceAccountId | null;
    name: string;
    /** What the key may do, within what its holder may do. */
    scope: string;
    /** The networks from which the key is accepted. Empty: from everywhere. */
    allowed_cidrs: Generated<string[]>;
    /** SHA-256 of the token. */
    token_hash: Buffer;
    /** The beginning of the token, which may be shown again. */
    prefix: string;
    /** The end of the token, which may be shown again. */
    last4: string;
    /** SHA-256 of the token before the last rotation, which is accepted until previous_expires_at. */
    previous_hash: Buffer | null;
    /** Until when the token before the last rotation is accepted. */
    previous_expires_at: Date | null;
    /** The API key that created this one, also when that one is gone. Null: a session did. */
    created_by_key: ApiKeyId | null;
    /** The nearest ancestor that still exists, so that a revocation reaches all descendants. Deferred: a backup restores rows in any order. */
    parent_key: ApiKeyId | null;
    /** The expiry date that a notification has announced. */
    notified_expires_at: Date | null;
    created_at: Generated<Date>;
    /** Written at most once a minute. */
    last_used_at: Date | null;
    expires_at: Date | null;
  };
  /** The last link of each organisation's chain of audit entries. */
  audit_heads: {
    org_id: OrgId;
    /** The number of the last entry in the chain. */
    seq: number;
    /** The MAC of the last entry in the chain. */
    mac: Buffer;
  };
  /** Who did what, when and from where. Without foreign keys: entries outlive everything that they name. A task adds new entries to their organisation's chain. */
  audit_log: {
    org_id: OrgId;
    /** The entry's number in the chain. Null: it is not in the chain yet. */
    seq: number | null;
    id: AuditId;
    /** When it happened. */
    at: Date;
    /** The id of the principal, or "system". */
    actor: string;
    /** What was done, such as "api_key.revoked". */
    action: string;
    /** The id of what it was done to. Null: nothing in particular. */
    target: string | null;
    /** The address of the client. Null: no request caused it. */
    ip: string | null;
    /** The X-Request-Id of the request. Null: no request caused it. */
    request_id: string | null;
    /** Details of the action. */
    data: ColumnType<Record<string, unknown>, string, string>;
    /** Before the entry is in the chain: a MAC of the entry alone. Then: a MAC of the entry and of the MAC before it. */
    mac: Buffer;
    /** The order of the inserts, in which entries are added to the chain. */
    serial: GeneratedAlways<number>;
  };
  /** One-time tickets for a VM's serial console, or for an exec's stream. A ticket opens it with the credential that asked for the ticket, which is checked for as long as it is open. */
  console_tickets: {
    /** SHA-256 of the ticket. */
    ticket_hash: Buffer;
    instance_id: InstanceId;
    /** The exec that the ticket is for. Null: it is for the console. */
    exec_id: ExecId | null;
    org_id: OrgId;
    /** What asked for the ticket: a session or an API key. */
    credential_kind: 'session' | 'key';
    /** The id of that session or API key. */
    credential_id: SessionId | ApiKeyId;
    /** SHA-256 of the API key's token at that time: a rotation keeps the key's id, and ends what the old token opened. Null for a session. */
    secret_hash: Buffer | null;
    expires_at: Date;
  };
  /** Control planes that hosts, ingresses and other control planes reach. */
  control_planes: {
    /** New at each start of the process. Ids of its calls to hosts begin with it. */
    id: string;
    /** Where its internal API is reached. */
    url: string;
    /** The fingerprint of the certificate that it shows there. */
    fingerprint: string;
    started_at: Generated<Date>;
    /** The control plane renews it. It counts as live for 15 s. */
    seen_at: Generated<Date>;
  };
  /** The keys that encrypt the objects of instances. */
  data_keys: {
    instance_id: InstanceId;
    /** The key's id, which objects name. Forks have a key under the same id. */
    key_id: string;
    /** The key, encrypted and bound to the instance. */
    wrapped: Buffer;
    /** disk: it encrypts the disk's new objects. memory: it encrypts the memory of a suspended VM. reading: it only decrypts existing objects. A fork gets its parent's disk keys for reading, and the parent a new one to write with; no fork gets a memory key. */
    use: 'disk' | 'memory' | 'reading';
    /** Objects were written with it, so a fork needs it. */
    used: Generated<boolean>;
    /** Of a replaced key: a flush that was under way may still commit with it, up to this generation. */
    until_generation: number | null;
    created_at: Generated<Date>;
  };
  /** Instances that were deleted while a host that may have files of them was lost. The host asks when it is back, and then removes the files. */
  deleted_instances: {
    instance_id: InstanceId;
  };
  /** What VMs were denied to reach, merged by destination: the last 100 of each instance. */
  denied_destinations: {
    instance_id: InstanceId;
    /** The name, or the address where no name is known. */
    destination: string;
    /** 0: a look-up, or a protocol without ports. */
    port: number;
    /** The name that the guest asked for. Null: unknown. */
    name: string | null;
    /** The address of the last attempt. Null: it was a look-up. */
    address: string | null;
    /** The last attempt. */
    at: Date;
    /** How often the VM tried. */
    attempts: number;
    /** The last event about it. Null: there was none. */
    event_at: Date | null;
  };
  /** Logins that a program asks for and a person confirms in a browser. */
  device_logins: {
    /** SHA-256 of the code with which the program polls. */
    device_hash: Buffer;
    /** Eight letters that the person compares. */
    user_code: string;
    /** The program also asks for a sudo grant. */
    sudo: boolean;
    /** The address of the program. */
    ip: string;
    /** The User-Agent of the program. */
    user_agent: string;
    /** The session that confirmed the login, and whose end removes it. Null: nobody has confirmed it. */
    confirmed_by: SessionId | null;
    created_at: Generated<Date>;
    expires_at: Date;
  };
  /** The disk of each instance. */
  disks: {
    instance_id: InstanceId;
    size_bytes: number;
    /** The version of the image below the generations, fixed at the first start. Null: not started yet. */
    image_version: string | null;
    /** The number of the head, the newest generation. 0: there is none yet. */
    generation: Generated<number>;
    /** The random id of the head. A database that was restored or failed over may reach the same number again with other content; the id then differs. */
    commit_id: Generated<string>;
    /** Incremented by each placement of a VM. Writes of an older epoch are refused. */
    epoch: Generated<number>;
    /** When the head was committed. Null: there is none yet. */
    durable_at: Date | null;
    /** The size of the objects that the disk holds. */
    stored_bytes: Generated<number>;
    /** What the VM has written since the last flush, as its host last reported. */
    dirty_bytes: Generated<number>;
    /** Set above 90 % use of the root file system, cleared below 85 %. */
    nearly_full: Generated<boolean>;
    /** What became of the last increase of the size: the guest's root file system has grown, or grows at the next boot. Null: it was never increased. */
    growth: 'done' | 'next_boot' | null;
    /** Blocks in the order in which the last boot that loads blocks on demand first read them. The next such boot loads them ahead. */
    boot_order: Generated<number[]>;
    /** The disk may hold objects that none of its generations needs: a fork holds all that its parent held. */
    holds_more: Generated<boolean>;
    /** A process compacts the disk, or has failed to: others leave it alone until then. Correctness does not depend on it. */
    compacting_until: Date | null;
  };
  /** The end of the event stream. One row, which the dispatcher locks. */
  event_head: {
    only_one: Generated<boolean>;
    /** The highest position that was given so far. */
    position: Generated<number>;
  };
  /** What happened: the outbox of webhooks, notifications and event streams. A row is written in the transaction that it tells of, and deleted after 30 days. */
  events: {
    id: EventId;
    /** The organisation that it concerns. Null: it concerns an account, and only notifications tell of it. */
    org_id: OrgId | null;
    /** The account that it concerns. Null: it concerns an organisation. */
    user_id: UserId | null;
    /** The instance that it concerns. Null: none. */
    instance_id: InstanceId | null;
    /** Numbers the events of the instance. */
    sequence: number | null;
    /** What happened, such as "vm.started" (src/control-plane/events/model.ts). */
    type: string;
    /** Details, by type. */
    data: ColumnType<unknown, string, string>;
    /** Who caused it: the id of a principal or host, or "system". */
    actor: string;
    /** The order of the inserts. */
    serial: GeneratedAlways<number>;
    /** The event's position in the stream. The dispatcher gives it, so positions follow commits. Null: not dispatched yet. */
    position: number | null;
    created_at: Generated<Date>;
  };
  /** Commands in guests that outlive their callers. Their output is on the host. */
  execs: {
    id: ExecId;
    instance_id: InstanceId;
    /** The host that has its output; the newest one, if its VM was moved. */
    host_id: HostId;
    /** The program and its arguments. */
    command: readonly string[];
    /** It has a terminal. */
    tty: boolean;
    /** Callers may send it input. */
    stdin: boolean;
    /** starting: its host has not answered yet, and callers do not see it. */
    state: Generated<'starting' | 'running' | 'exited' | 'lost'>;
    /** Null: it has not ended, or a signal ended it, or its end is unknown. */
    exit_code: number | null;
    /** The signal that ended it. Null: none did. */
    signal: number | null;
    /** It was ended because its time was up. */
    timed_out: Generated<boolean>;
    /** Of a lost exec: what ended before the exec's own end was known. Else null. */
    lost_with: 'boot' | 'supervisor' | null;
    /** How much output it has had, as its host last reported. */
    output_bytes: Generated<number>;
    /** Its input is open and nobody is attached, as its host last reported. Never set without input. */
    waits: Generated<boolean>;
    started_at: Generated<Date>;
    ended_at: Date | null;
  };
  /** Flushes that callers wait for: at most one queued and one running for each instance. */
  flushes: {
    id: FlushId;
    instance_id: InstanceId;
    vm_id: VmId;
    /** The first of those who wait for it. */
    requested_by: string;
    state: 'queued' | 'running' | 'done' | 'failed';
    finished_at: Date | null;
    /** The answer to those who wait. Null: it is not done. */
    receipt: ColumnType<unknown, string | null, string | null>;
    /** Why it failed: {code, message}. Null: it has not. */
    error: ColumnType<unknown, string | null, string | null>;
    /** The request that asked for it, and its span: {request_id, traceparent}. */
    trace_context: ColumnType<TraceContext | null, string | null, string | null>;
  };
  /** SSH addresses without an instance, taken in the order of the index. The control plane adds those of its range when it starts. */
  free_ssh_ports: {
    /** The name of the address. */
    host: Generated<string>;
    /** The port of the address. */
    port: number;
    /** When the last instance that ran at this address was deleted. Null: none ran. */
    quarantined_at: Date | null;
  };
  /** Durable states of disks. */
  generations: {
    instance_id: InstanceId;
    /** The number of the generation in its disk. */
    generation: number;
    /** A random id, because a restored database may give a number again. */
    commit_id: Generated<string>;
    /** The epoch of the VM that wrote it. */
    epoch: number;
    /** The generation that its changes apply to. Null: they apply to the image. */
    parent: number | null;
    /** The objects with its changes, in order: [{key, size_bytes, entries, …}] (SegmentRef in src/protocol). */
    segments: ColumnType<SegmentRef[], string, string>;
    /** An object with the index of the segments: {key, size_bytes, full, key_id}; full: of the whole chain up to here. Null: there is none, and readers read the segments. */
    map: ColumnType<MapRef | null, string | null, string | null>;
    /** The size of its new objects. */
    bytes: number;
    /** How far the guest was prepared: its file systems were frozen, it was not asked (as after a crash), or its VM had ended. */
    consistency: 'filesystem' | 'crash' | 'offline';
    /** What made it: a request, an automatic flush, the last flush of a stop or suspend, an import, a fork or a restore. */
    trigger: Generated<'request' | 'auto' | 'stop' | 'suspend' | 'import' | 'fork' | 'restore'>;
    /** What the content of a fork or a restore was taken from, which may be gone: {instance_id, generation}. Else null. */
    origin: ColumnType<GenerationOrigin | null, string | null, string | null>;
    /** What the flush found to save. Null: no flush made it. */
    dirty_bytes: number | null;
    /** How many segments the flush wrote. Null: no flush made it. */
    segment_count: number | null;
    /** How long the flush took. Null: unknown. */
    duration_ms: number | null;
    /** The user's name for it. Null: none. */
    name: string | null;
    /** Retention keeps it. */
    pinned: Generated<boolean>;
    /** False: users no longer see it; it is kept only as a link of the chain that other generations need. */
    retained: Generated<boolean>;
    created_at: Generated<Date>;
  };
  /** How many VMs each organisation has on each host, so that a placement spreads them. */
  host_org_use: {
    host_id: HostId;
    org_id: OrgId;
    /** VMs of the organisation that are on the host. */
    vms: Generated<number>;
  };
  /** The number of each instance on each host. It keeps the number for life, because its files there belong to the slot's user. */
  host_slots: {
    host_id: HostId;
    /** The VM's user, TAP device and address on the host follow from it. */
    slot: number;
    instance_id: InstanceId;
  };
  /** What VMs use of each host, so that a placement need not count. Placements on one host wait for each other here. */
  host_use: {
    host_id: HostId;
    /** VMs that are on the host and use its CPUs. */
    vms: Generated<number>;
    /** The memory of these VMs. */
    memory_mib: Generated<number>;
  };
  /** Machines that run VMs. A removed host keeps its row for the VMs that ran there; another host of its name has a row of its own. */
  hosts: {
    id: HostId;
    name: string;
    /** The host is another machine: its VMs are reached through the agent's own connection, and addresses that it reports are not dialled. */
    remote: Generated<boolean>;
    /** SHA-256 of the agent's credential. */
    token_hash: Buffer;
    /** SHA-256 of the credential that replaces the present one once the agent has used it. */
    next_token_hash: Buffer | null;
    /** Since when the agent has used its present credential. */
    credential_since: Generated<Date>;
    /** The agent is to replace its credential now. */
    rotate_requested: Generated<boolean>;
    /** SHA-256 of the one-time join token. It stays after its use, so that a host whose answer was lost may repeat the join. */
    join_hash: Buffer | null;
    /** Until when the join token is accepted. */
    join_expires_at: Date | null;
    /** The version of the agent protocol that the agent last spoke. Null: it has not called yet. */
    protocol: number | null;
    /** What the agent last reported about its machine (HostFacts in src/protocol). */
    facts: ColumnType<HostFacts | null, string | null, string | null>;
    /** The CPUs that VMs may use on a remote host. Null: the operator has not said. */
    cpus: number | null;
    /** The memory that VMs may use on a remote host. Null: the operator has not said. */
    memory_mib: number | null;
    /** The operator's labels, such as {"zone": "a"}, which instances may ask for. */
    labels: ColumnType<Record<string, string>, string | undefined, string>;
    /** The host takes only instances that tolerate all of these. */
    taints: Generated<string[]>;
    /** The host gets no new VM. */
    cordoned: Generated<boolean>;
    /** Its VMs are moved to other hosts. A draining host is also cordoned. */
    draining: Generated<boolean>;
    /** How many VMs it had when its drain began. Null: it is not drained. */
    drain_vms: number | null;
    /** Incremented by each renewal of the lease. A control plane sees by it that the host lives, without comparing clocks. */
    beat: Generated<number>;
    /** The length of the host's lease. When it expires, the host pauses its VMs. Null: no lease, and the host is never lost. */
    lease_ms: number | null;
    /** Since when the lease has been expired. Null: the host is not lost. */
    lost_at: Date | null;
    /** The last call of the agent. */
    last_seen_at: Date | null;
    created_at: Generated<Date>;
    /** When the operator removed the host and revoked its credential. Null: it is part of the fleet. */
    removed_at: Date | null;
  };
  /** Cookies of browsers that redeemed a ticket, each for one hostname. */
  http_cookies: {
    /** SHA-256 of the cookie's value. */
    cookie_hash: Buffer;
    port_id: HttpPortId;
    /** The hostname that the cookie is for. */
    hostname: string;
    /** The session that asked for the ticket, with which access ends. */
    session_id: SessionId;
    org_id: OrgId;
    created_at: Generated<Date>;
    expires_at: Date;
  };
  /** Hostnames of users. Several ports may wait for a hostname; one has it, while the TXT record is found. */
  http_hostnames: {
    port_id: HttpPortId;
    /** The hostname, in lower case. */
    hostname: string;
    /** The value that the TXT record must have. */
    proof: string;
    /** Since when the port has had the hostname. Null: it waits for the TXT record. */
    active_at: Date | null;
    /** When the TXT record was last looked up. Null: not yet. */
    checked_at: Date | null;
    /** Why the last look-up found no record. Null: it did, or there was none. */
    problem: string | null;
    /** When the TXT record is looked up next. */
    next_check_at: Generated<Date>;
    created_at: Generated<Date>;
  };
  /** Every label that a port's hostname ever began with. Rows are never deleted, so no label is given twice. */
  http_labels: {
    /** The first label of a hostname. */
    label: string;
  };
  /** What ingresses reported of each port. A table of its own, because it changes every few seconds. */
  http_port_use: {
    port_id: HttpPortId;
    /** The beginning of the last minute with a report. */
    minute: Date;
    /** Requests in that minute. */
    requests: number;
    /** Requests in the minute before. */
    previous_requests: number;
    /** Bytes to clients, in total. */
    sent_bytes: Generated<number>;
    /** Bytes from clients, in total. */
    received_bytes: Generated<number>;
    /** The newest answer of Berth instead of the guest: {at, code, message}. Null: there was none. */
    last_error: ColumnType<HttpError | null, string | null, string | null>;
  };
  /** Ports in guests that the ingress serves under a hostname. */
  http_ports: {
    id: HttpPortId;
    instance_id: InstanceId;
    /** The first label of its hostname; BERTH_HTTP_DOMAIN is the rest. */
    label: string;
    /** The port in the guest. */
    port: number;
    /** Who may use it: members of the organisation, or everybody. */
    access: 'private' | 'public';
    /** Incremented by each change of the port or of its hostnames. It is the ETag. */
    version: Generated<number>;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
  /** One-time tickets that open a private port in a browser. */
  http_tickets: {
    /** SHA-256 of the ticket. */
    ticket_hash: Buffer;
    port_id: HttpPortId;
    /** The hostname that the browser opens. */
    hostname: string;
    /** The session that asked for it, with which access ends. */
    session_id: SessionId;
    org_id: OrgId;
    expires_at: Date;
  };
  /** Responses of successful requests, for requests that repeat their Idempotency-Key. */
  idempotency_keys: {
    org_id: OrgId;
    /** The id of the account, API key or service account that sent the request. */
    principal: string;
    /** Method and path pattern of the route. */
    route: string;
    /** The request's Idempotency-Key. */
    key: string;
    /** SHA-256 of the canonical request, to refuse another request with the same key. */
    fingerprint: Buffer;
    /** The HTTP status of the response. */
    status: number;
    /** The body of the response, encrypted. */
    response: Buffer;
    expires_at: Date;
  };
  /** Which account belongs to which user of an OpenID provider. */
  identities: {
    /** The provider. */
    issuer: string;
    /** The provider's id of the user. */
    subject: string;
    user_id: UserId;
    /** The provider's refresh token, encrypted. Null: the provider gave none, or has refused it. */
    refresh_token: Buffer | null;
    /** When the provider last answered for the user. */
    checked_at: Generated<Date>;
    /** Until then one process asks the provider and others wait, because most refresh tokens may be used only once. */
    claimed_until: Date | null;
    created_at: Generated<Date>;
  };
  /** Base images in the object store. A row is written after its objects. */
  image_versions: {
    /** The name of the image, such as debian-12. */
    image_id: string;
    /** SHA-256 of the root file system. */
    version: string;
    /** What the image was built from. Two builds of one recipe have different versions and are equally good. */
    recipe: string;
    /** SHA-256 of the object that lists the image's other objects with their hashes. */
    index_sha256: string;
    /** The size of the root file system. No disk may be smaller. */
    size_bytes: number;
    /** The size of the image's objects. */
    stored_bytes: number;
    /** New disks use this version. */
    current: Generated<boolean>;
    /** When the version was removed: hosts that still have it delete their copy and do not offer it again. Null: it is in use. */
    removed_at: Date | null;
    created_at: Generated<Date>;
  };
  /** Processes that hold the ports of instances. */
  ingresses: {
    id: IngressId;
    name: string;
    /** SHA-256 of the ingress' credential. */
    token_hash: Buffer;
    /** The host of the same machine, whose VMs the ingress dials itself. Null: it is on another machine, and every connection takes a tunnel. */
    host_id: HostId | null;
    /** The version of the agent protocol that it last spoke. Null: it has not called yet. */
    protocol: number | null;
    /** Since when it has counted connections without a gap. Null: it has not reported yet. */
    watching_since: Date | null;
    /** When it last reported. Null: it has not reported yet. */
    reported_at: Date | null;
    created_at: Generated<Date>;
  };
  /** What all control planes of the installation share. At most one row. */
  installation: {
    only_one: Generated<boolean>;
    /** The key that every other key of the installation is derived from, encrypted with the secret key. */
    root_key: Buffer;
    /** The same key, encrypted with the secret key that is to replace the present one. Null: none is. */
    new_root_key: Buffer | null;
    /** PEM. The certificate that hosts, ingresses and other control planes pin. Null: no control plane has listened to hosts yet. */
    hosts_certificate: string | null;
    /** The certificate's private key, encrypted. */
    hosts_key: Buffer | null;
    /** PEM. The certificate that replaces it once every control plane shows it. Hosts learn of it first. Null: none does. */
    next_certificate: string | null;
    /** The next certificate's private key, encrypted. */
    next_key: Buffer | null;
    /** When a control plane last sent the next certificate to hosts. */
    next_announced_at: Date | null;
    /** For how long control planes have sent the next certificate to hosts, without the gaps. */
    next_announced_seconds: Generated<number>;
  };
  /** The certificate authority of an instance's intercepted connections, which its guest trusts. It is made with the instance's first secret and deleted with the last one. */
  instance_authorities: {
    instance_id: InstanceId;
    /** PEM. */
    certificate: string;
    /** PEM, encrypted and bound to the instance. */
    private_key: Buffer;
    created_at: Generated<Date>;
  };
  /** The SSH keys that an instance with ssh_key_mode explicit accepts. */
  instance_ssh_keys: {
    instance_id: InstanceId;
    ssh_key_id: SshKeyId;
  };
  /** What users have: a disk, settings, an SSH address, and at most one running VM. */
  instances: {
    id: InstanceId;
    org_id: OrgId;
    /** The account or service account that created it. */
    created_by: string;
    name: string;
    /** The user's labels, by name. */
    labels: ColumnType<Record<string, string>, string | undefined, string>;
    /** The image that its disk began with. */
    image: string;
    cpus: number;
    memory_mib: number;
    disk_gib: number;
    /** A running VM that nobody uses for so long is stopped. Null: never. */
    idle_timeout_seconds: number | null;
    /** A connection to the stopped instance starts its VM. */
    wake_on_connect: Generated<boolean>;
    /** Whether a failed VM is started again by itself. */
    restart: Generated<'never' | 'on_failure'>;
    /** The time between automatic flushes. Null: none. */
    auto_flush_seconds: number | null;
    /** Retention keeps the newest generations, as many as this. */
    keep_last: Generated<number>;
    /** Retention also keeps the newest generation of each of the last days, as many as this. */
    keep_daily_days: Generated<number>;
    /** The egress policy: what the VM may reach. */
    egress_mode: Generated<'open' | 'deny' | 'allow'>;
    /** What mode allow permits, in the form of src/shared/egress-policy.ts. */
    egress_allow: Generated<string[]>;
    /** The labels that a host of its VM must have. */
    host_labels: ColumnType<Record<string, string>, string | undefined, string>;
    /** The taints of hosts that its VM may nevertheless run on. */
    tolerations: Generated<string[]>;
    /** The name of its SSH address (BERTH_SSH_HOST). The control plane's start renews it. */
    ssh_host: Generated<string>;
    /** The port of its SSH address, fixed for the instance's life. */
    ssh_port: number;
    /** Which SSH keys the guest accepts: account, those of its creator; explicit, those of instance_ssh_keys. */
    ssh_key_mode: Generated<'account' | 'explicit'>;
    /** The guest's SSH host keys, as its host reported them. Null: unknown yet. */
    host_keys: ColumnType<HostKey[] | null, string | null, string | null>;
    /** What it was forked from, which may be gone: {instance_id, generation, dirty_bytes}. Null: it is no fork. */
    forked_from: ColumnType<ForkedFrom | null, string | null, string | null>;
    /** The instance is being deleted: users no longer see it, and its host removes its files. */
    deleting: Generated<boolean>;
    /** The number of its last event. Old events are deleted; their numbers are not used again. */
    event_sequence: Generated<number>;
    /** Incremented by each change of the row. It guards updates and is the ETag. */
    version: Generated<number>;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
  /** Invitations that were not accepted yet. */
  invitations: {
    id: InvitationId;
    org_id: OrgId;
    /** The address that the invitation was sent to. */
    email: string;
    /** The role of the new member. */
    role: 'owner' | 'admin' | 'member' | 'billing';
    /** SHA-256 of the invitation's token. */
    token_hash: Buffer;
    /** The account that invited. */
    invited_by: string;
    created_at: Generated<Date>;
    expires_at: Date;
  };
  /** Where an account has logged in from. A login from elsewhere raises a notification. */
  known_locations: {
    user_id: UserId;
    /** A hash of account, network and browser. */
    location_hash: Buffer;
    last_seen_at: Generated<Date>;
  };
  /** Failed logins by e-mail address, whether or not an account has the address. */
  lockouts: {
    /** The e-mail address in lower case. */
    email_key: string;
    /** Consecutive failures since the last success or lock. */
    failures: Generated<number>;
    /** How often the address was locked since the last success. Each lock lasts twice as long as the one before. */
    locks: Generated<number>;
    /** Until then even a correct password is refused. Null: not locked. */
    locked_until: Date | null;
    updated_at: Generated<Date>;
  };
  /** Mails of the last quarter of an hour, to bound how many one address receives. */
  mail_counts: {
    /** The address in lower case. */
    address: string;
    /** The kind of mail. */
    kind: string;
    /** When mails of the kind went to the address, oldest first. */
    sent_at: Date[];
  };
  /** Single-use tokens that were sent by mail. */
  mail_tokens: {
    /** SHA-256 of the token. */
    token_hash: Buffer;
    /** What the token does: reset the password, or confirm an e-mail address. */
    kind: 'password_reset' | 'confirm_email';
    user_id: UserId;
    /** confirm_email: the address that the token confirms. Else null. */
    email: string | null;
    expires_at: Date;
  };
  /** The outbox of all mails. A sent mail is deleted. */
  mails: {
    id: MailId;
    /** What it is for, such as "password_reset". */
    kind: string;
    /** The account that a mail of notifications goes to. Null: any other mail. */
    user_id: UserId | null;
    /** Address, subject and text, encrypted: the text may carry a token. */
    content: Buffer;
    /** Failed attempts. */
    attempts: Generated<number>;
    /** The next attempt. A process that sends the mail moves it on first, as its lease. */
    due_at: Generated<Date>;
    /** From then on it is not sent any more. */
    expires_at: Date;
  };
  /** Members of organisations. */
  memberships: {
    org_id: OrgId;
    user_id: UserId;
    /** What the member may do (docs/permissions.md). */
    role: 'owner' | 'admin' | 'member' | 'billing';
    /** The groups of the OpenID provider decide the role, and whether the membership exists. */
    by_groups: Generated<boolean>;
    created_at: Generated<Date>;
  };
  /** The memory of suspended VMs, in the object store. It belongs to the suspended VM, then to the boot that resumes it. It is deleted once that VM is neither suspended nor starting, or once it belongs to none. */
  memory_images: {
    /** What the keys of all its objects begin with. */
    key: string;
    instance_id: InstanceId;
    /** The VM that may resume from it. Null: none may, because it was used. */
    vm_id: VmId | null;
    /** What a host needs to load it (MemoryRef in src/protocol). */
    ref: ColumnType<MemoryRef, string, string>;
    created_at: Generated<Date>;
  };
  /** What VMs used: by the minute for a day, by the hour for 30 days. A period without a running VM has no row. Without a foreign key, whose check would wait for changes of the instance and hold them up; a deletion of the instance deletes its rows. */
  metric_samples: {
    instance_id: InstanceId;
    /** The beginning of the period. */
    at: Date;
    /** The length of the period. */
    seconds: number;
    /** How many minutes of the period were measured. */
    minutes: number;
    /** The mean of each of METRICS (src/protocol/host-types.ts), in its order. An element is null where nothing was measured; so in mins and maxs. */
    means: readonly (number | null)[];
    /** The least value of each. */
    mins: readonly (number | null)[];
    /** The greatest value of each. */
    maxs: readonly (number | null)[];
  };
  /** Second factors of accounts. */
  mfa_factors: {
    id: MfaFactorId;
    user_id: UserId;
    /** An app with time-based codes, or a security key or passkey. */
    type: 'totp' | 'webauthn';
    name: string;
    /** totp: the secret, encrypted. webauthn: null. */
    secret: Buffer | null;
    /** webauthn: {id, public_key, counter, transports}. totp: null. */
    credential: ColumnType<StoredCredential | null, string | null, string | null>;
    /** totp: the last time step that was accepted, so that a code works once. */
    last_step: number | null;
    /** When the factor was first used. Null: it is not set up yet and does not count. */
    confirmed_at: Date | null;
    created_at: Generated<Date>;
    last_used_at: Date | null;
  };
  /** Preferences of accounts that differ from the default. */
  notification_preferences: {
    user_id: UserId;
    /** The kind of notification. */
    kind: string;
    /** Whether such notifications are also mailed. */
    mail: boolean;
  };
  /** Notifications of accounts and service accounts. */
  notifications: {
    id: NotificationId;
    /** An account or a service account. Without a foreign key: deleting the recipient deletes its notifications. */
    recipient: UserId | ServiceAccountId;
    /** The organisation that it concerns, whose API keys may read it. Null: it concerns the account. */
    org_id: OrgId | null;
    /** What it tells, such as "vm.failed" (src/control-plane/notifications/model.ts). */
    kind: string;
    title: string;
    body: string;
    /** The kind of resource that it concerns. Null: none. */
    resource_type: string | null;
    /** The id of that resource. */
    resource_id: string | null;
    /** Details, by kind. */
    data: ColumnType<Record<string, unknown>, string, string>;
    /** How often it was raised while it was unread. */
    count: number;
    /** The position of the event that raised it last. Streams resume from it. */
    position: number;
    /** The event that raised it last. */
    event_id: EventId;
    created_at: Date;
    /** When it was raised last. */
    raised_at: Date;
    /** Null: unread. */
    read_at: Date | null;
    /** It waits for a mail that is composed then, or later. Null: it waits for none. */
    mail_after: Date | null;
  };
  /** Processes that read objects, such as backups (src/control-plane/disks/keep-objects.ts). */
  object_readers: {
    id: string;
    /** Until then no task removes any object. The reader renews it. */
    until: Date;
  };
  /** The object store that has this database's objects. At most one row. */
  object_stores: {
    only_one: Generated<boolean>;
    /** The id in the store's own marker object. */
    id: string;
    /** When the marker object was written. From then on a store without it is refused as another one. */
    marked_at: Date | null;
  };
  /** Processes that write objects which no row names yet (src/control-plane/disks/segment-store.ts). Meanwhile objects of the instance are not removed as orphans. */
  object_writers: {
    id: string;
    instance_id: InstanceId;
    /** When the writer began. A row older than a day is deleted, and its writer then names nothing. */
    since: Generated<Date>;
  };
  /** How many event streams, notification streams and consoles each organisation has open at each control plane. Unlogged: a crash of the database may lose the counts. */
  open_streams: {
    org_id: OrgId;
    /** The id of the control plane's process, which is new at each start. */
    control_plane: string;
    /** How many streams are open. */
    count: number;
    /** The control plane renews it every 2 s. Rows that are older than 6 s do not count. */
    seen_at: Generated<Date>;
  };
  /** What owns instances, keys and webhooks, and what its members share. */
  organisations: {
    id: OrgId;
    name: string;
    /** The address for bills. */
    billing_email: string;
    /** The organisation's own quotas, such as {"instances": 50, "cpus": null}; null is unlimited. A missing quota has the default of the settings. */
    quotas: ColumnType<OwnQuotas, string | undefined, string>;
    /** The first administrator's organisation: its owners and admins see the whole installation. No other one ever becomes it. */
    operator: Generated<boolean>;
    /** The account that created it and counts it in its quota. Null: no account did. */
    created_by: UserId | null;
    created_at: Generated<Date>;
  };
  /** Unused codes that replace a lost second factor. */
  recovery_codes: {
    user_id: UserId;
    /** SHA-256 of the code, which is enough: a code has 80 random bits. */
    code_hash: Buffer;
  };
  /** Refresh tokens that were replaced a moment ago and are still accepted. Later use of a replaced token ends the session. */
  replaced_refresh_tokens: {
    /** SHA-256 of the token. */
    token_hash: Buffer;
    session_id: SessionId;
    replaced_at: Generated<Date>;
  };
  /** Requests of each address to the routes that take a password or a token, counted over all control planes. Columns and their order are those of rate-limiter-flexible, which also removes expired rows. Unlogged: a crash of the database may lose the counts. */
  request_counts: {
    /** The limit and the address that it counts. */
    key: string;
    /** Requests in the present window. */
    points: Generated<number>;
    /** When the window ends, in milliseconds since 1970. */
    expire: number | null;
  };
  /** Secrets that a VM uses and cannot read: the guest has the placeholder, its host the value. */
  secrets: {
    /** The order of their creation. */
    serial: GeneratedAlways<number>;
    instance_id: InstanceId;
    name: string;
    /** Where the value may be sent: exact names, or "*." and a domain; in lower case. */
    hosts: string[];
    /** What the guest has. It stays when the value is replaced. */
    placeholder: string;
    /** The value, encrypted and bound to instance and name. Null: a fork inherited the name without the value. */
    value: Buffer | null;
    updated_at: Generated<Date>;
  };
  /** The instances whose generations need an object. Forks share objects with their parents. */
  segment_holders: {
    /** The key of the object. */
    key: string;
    instance_id: InstanceId;
  };
  /** Objects of disks (segments and maps) that a generation names or has named. */
  segments: {
    /** The key of the object in the object store. */
    key: string;
    size_bytes: number;
    /** When a task first saw it without a holder. It is removed some time later. Null: it has a holder. */
    unheld_at: Date | null;
    created_at: Generated<Date>;
  };
  /** Principals that are no people: each has a scope instead of a role. */
  service_accounts: {
    id: ServiceAccountId;
    org_id: OrgId;
    name: string;
    /** What the service account may do, such as "instances:read vm:write" or "*". */
    scope: string;
    /** The principal that created it. */
    created_by: string;
    created_at: Generated<Date>;
  };
  /** Bearer tokens of sessions. */
  session_tokens: {
    /** SHA-256 of the token. */
    token_hash: Buffer;
    session_id: SessionId;
    expires_at: Date;
  };
  /** Logins. A session lasts up to 30 days; its bearer tokens last an hour each and are renewed with its refresh token. */
  sessions: {
    id: SessionId;
    user_id: UserId;
    /** SHA-256 of the random part that all refresh tokens of the session share. It finds the session of a replaced token too. */
    refresh_family: Buffer | null;
    /** SHA-256 of the present refresh token. */
    refresh_hash: Buffer | null;
    /** The address that logged in. */
    ip: string;
    /** The User-Agent that logged in. */
    user_agent: string;
    created_at: Generated<Date>;
    last_seen_at: Generated<Date>;
    /** The session is over then, however often it is refreshed. */
    ends_at: Date;
  };
  /** SSH public keys of accounts. */
  ssh_keys: {
    id: SshKeyId;
    user_id: UserId;
    /** Of a key that an API key registered: it grants access to this organisation's instances only, and ends with its owner's membership. Null: it grants access wherever its owner's keys do. */
    org_id: OrgId | null;
    name: string;
    /** The algorithm, such as ssh-ed25519. */
    type: string;
    /** SHA-256 as ssh-keygen shows it: SHA256:… */
    fingerprint: string;
    /** Type and key as in authorized_keys, without comment. */
    public_key: string;
    /** The API key that registered it, or that key's nearest ancestor that still exists. Null: there is none. */
    parent_key: ApiKeyId | null;
    created_at: Generated<Date>;
    /** When a guest last accepted it. */
    last_used_at: Date | null;
  };
  /** Recent password checks. The sudo cookie carries the token of one for five minutes. */
  sudo_grants: {
    /** SHA-256 of the cookie's token. */
    token_hash: Buffer;
    session_id: SessionId;
    user_id: UserId;
    expires_at: Date;
  };
  /** How far usage is counted. One row. */
  usage_clock: {
    only_one: Generated<boolean>;
    /** Until when running time and memory are counted. */
    counted_until: Generated<Date>;
    /** Until when stored bytes are counted. A reader adds what is stored since then. */
    stored_until: Generated<Date>;
  };
  /** What each instance used in an hour. Without foreign keys: it outlives instances and organisations, for 13 months. */
  usage_hours: {
    instance_id: InstanceId;
    org_id: OrgId;
    /** The beginning of the hour. */
    hour: Date;
    /** How long a VM ran. */
    running_seconds: Generated<number>;
    /** CPU time that the VM used. */
    cpu_seconds: Generated<number>;
    /** MiB of memory times seconds that a VM ran. */
    memory_mib_seconds: Generated<number>;
    /** Bytes in the object store times seconds. */
    stored_byte_seconds: Generated<number>;
    /** Bytes that flushes saved. */
    flushed_bytes: Generated<number>;
    /** Bytes through HTTP ports, both ways. */
    http_bytes: Generated<number>;
  };
  /** Scripts for the first boots of instances. A script is kept until the disk that has run it is durable. */
  user_data: {
    instance_id: InstanceId;
    /** The script, as the user gave it. */
    script: string;
    /** A boot has received the script. */
    given: Generated<boolean>;
  };
  /** Accounts of people. */
  users: {
    id: UserId;
    /** The e-mail address as it was entered. */
    email: string;
    /** The e-mail address in lower case, for comparison. */
    email_key: string;
    /** The account's owner has proved that mail to the address arrives. */
    email_confirmed: Generated<boolean>;
    name: string;
    /** argon2id, as a PHC string. Null: the account has no password and logs in at an OpenID provider. */
    password_hash: string | null;
    created_at: Generated<Date>;
  };
  /** The boots of instances, a row each. The one with the highest number is the instance's VM. */
  vms: {
    id: VmId;
    instance_id: InstanceId;
    /** Numbers the boots of the instance. */
    boot: number;
    /** The disk's epoch that this boot writes with. */
    epoch: number;
    /** The host that the boot was placed on. */
    host_id: HostId;
    /** What the user wants of the VM. */
    desired: 'running' | 'suspended' | 'stopped';
    /** What the VM does (src/control-plane/vms/model.ts has the transitions). */
    state: 'starting' | 'running' | 'restarting' | 'suspending' | 'suspended' | 'stopping' | 'stopped' | 'failed';
    /** Stop without asking the guest. */
    force: Generated<boolean>;
    /** How many reboots were asked for. The agent reports how many it has done. */
    reboots: Generated<number>;
    /** How often the guest was reset, by itself or by a restart. The ingress then ends the connections from before. */
    resets: Generated<number>;
    /** Why the VM is in its state. Null: it needs no reason. */
    reason_code: VmReasonCode | null;
    /** The same as a sentence for users. */
    reason_message: string | null;
    /** Who caused it: the id of a principal or host, or "system". */
    reason_actor: string | null;
    /** The guest may have run: only then may the disk have been written. */
    guest_ran: Generated<boolean>;
    /** The head that the VM started from or committed last. Its host's overlay is compared with it. */
    generation: Generated<number>;
    /** The random id of that head. Null: unknown. */
    commit_id: string | null;
    /** Where sshd answers on the host. Null: it does not answer yet. */
    ssh_address: string | null;
    /** Fingerprints of the SSH keys that the guest accepts, reported after all connections with other keys have ended. While one of them is revoked, the revocation is not confirmed. Null: not reported in this boot. */
    applied_keys: ColumnType<readonly string[] | null, string | null, string | null>;
    /** The VM is to continue on another host, by its memory or from its disk. Any other change of the VM ends that. */
    move: 'suspend' | 'stop' | null;
    /** Why it could not move, for the operator. Null: no attempt has failed. */
    move_problem: string | null;
    /** When the next attempt to move it may begin. Null: now. */
    move_after: Date | null;
    /** The instance is being deleted, and this host has removed everything of it. */
    released: Generated<boolean>;
    /** The last use, by an SSH connection or by an API call. */
    active_at: Date | null;
    /** When the guest first answered. Null: not yet. */
    started_at: Date | null;
    /** When the boot ended. Null: not yet. */
    stopped_at: Date | null;
    /** Since when the durable head has held everything that the guest has written. */
    suspended_at: Date | null;
    /** When this boot was started by itself, after the last one had failed. Null: it was not. */
    restarted_at: Date | null;
    /** When a failed VM may be started again by itself. Null: not looked at yet. Infinity: never. */
    restart_after: ColumnType<never, string | undefined, string>;
    /** The time limit of the present state. Null: it has none. */
    deadline_at: Date | null;
    /** The request that last asked for the state, and its span: {request_id, traceparent}. Null: none did. */
    trace_context: ColumnType<TraceContext | null, string | null, string | null>;
    /** Incremented by each change of the row. It guards updates. */
    version: Generated<number>;
  };
  /** Challenges of WebAuthn that wait for their answer. */
  webauthn_challenges: {
    /** Base64url, as the browser returns it. */
    challenge: string;
    /** register: the account that adds the factor. login: null, or the account that gave its password. */
    user_id: UserId | null;
    /** Whether the answer adds a factor or logs in. */
    purpose: 'register' | 'login';
    expires_at: Date;
  };
  /** Attempts to deliver, and how they were answered. */
  webhook_attempts: {
    delivery_id: WebhookDeliveryId;
    /** Numbers the attempts of a delivery. */
    number: number;
    /** When the attempt began. */
    at: Date;
    /** Where it was sent. */
    url: string;
    /** The HTTP status of the answer. Null: there was no answer. */
    status: number | null;
    /** How long it took. */
    latency_ms: number;
    /** Why it failed. Null: it was delivered. */
    error: string | null;
    /** The headers of the answer. */
    response_headers: ColumnType<Record<string, string>, string, string>;
    /** The beginning of the answer's body. */
    response: string;
  };
  /** The events that are or were sent to each webhook. Without foreign keys, here and in webhook_attempts: checking them costs as much as the insert. A task deletes rows whose webhook is gone. */
  webhook_deliveries: {
    id: WebhookDeliveryId;
    webhook_id: WebhookId;
    event_id: EventId;
    /** The event's position in the stream. */
    position: number;
    instance_id: InstanceId | null;
    state: Generated<'pending' | 'delivered' | 'failed'>;
    /** A first attempt or a replay, sent in the order of positions. Otherwise a retry or a redelivery. */
    in_order: Generated<boolean>;
    /** Attempts over its life. */
    attempts: Generated<number>;
    /** Attempts since it was last asked for: a redelivery or a replay starts the backoff again. */
    tries: Generated<number>;
    /** When the next attempt is due. Null: it is not pending. */
    next_attempt_at: Generated<Date | null>;
    created_at: Generated<Date>;
  };
  /** Which process sends to a webhook, for as long as it renews its lease. */
  webhook_leases: {
    webhook_id: WebhookId;
    /** The id of the process. */
    owner: string;
    /** Until when the lease is valid. */
    until: Date;
  };
  /** URLs that events are sent to. */
  webhooks: {
    id: WebhookId;
    /** Null: the webhook was deleted. A task deletes its deliveries bit by bit, then the row. */
    org_id: OrgId | null;
    name: string;
    /** Where events are sent. */
    url: string;
    /** The types of events that it wants, such as "vm.*". */
    events: string[];
    status: Generated<'enabled' | 'disabled'>;
    /** Why nothing is sent: a user asked for that, the URL answered 410, or it has failed for too long. Null: it is enabled. */
    disabled_reason: 'requested' | 'gone' | 'failing' | null;
    disabled_at: Date | null;
    /** The secret that signs deliveries, encrypted. */
    secret: Buffer;
    /** The secret before the last rotation, encrypted. It also signs until previous_expires_at. */
    previous_secret: Buffer | null;
    /** Until when the secret before the last rotation also signs. */
    previous_expires_at: Date | null;
    /** Since when every attempt has failed. Null: the last one succeeded. */
    failing_since: Date | null;
    /** A notification has said that it is failing. */
    failing_notified: Generated<boolean>;
    /** When the present URL first answered 2xx. Null: never. */
    proven_at: Date | null;
    /** Incremented by each change of the row. It is the ETag. */
    version: Generated<number>;
    /** The principal that created it. */
    created_by: string;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
}
