-- Made by `node test/support/write-schema.ts` from a migrated database. Do not edit.

-- API keys. Each belongs to a member or to a service account of its organisation.
create table api_keys (
  id text not null,
  org_id text not null,
  -- The member whose key it is. Null: a service account has it.
  user_id text,
  -- The service account whose key it is. Null: a member has it.
  service_account_id text,
  name text not null,
  -- What the key may do, within what its holder may do.
  scope text not null,
  -- The networks from which the key is accepted. Empty: from everywhere.
  allowed_cidrs text[] not null default '{}'::text[],
  -- SHA-256 of the token.
  token_hash bytea not null,
  -- The beginning of the token, which may be shown again.
  prefix text not null,
  -- The end of the token, which may be shown again.
  last4 text not null,
  -- SHA-256 of the token before the last rotation, which is accepted until previous_expires_at.
  previous_hash bytea,
  -- Until when the token before the last rotation is accepted.
  previous_expires_at timestamp with time zone,
  -- The API key that created this one, also when that one is gone. Null: a session did.
  created_by_key text,
  -- The nearest ancestor that still exists, so that a revocation reaches all descendants. Deferred: a backup restores rows in any order.
  parent_key text,
  -- The expiry date that a notification has announced.
  notified_expires_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  -- Written at most once a minute.
  last_used_at timestamp with time zone,
  expires_at timestamp with time zone,
  constraint api_keys_pkey PRIMARY KEY (id),
  constraint api_keys_token_hash_key UNIQUE (token_hash),
  constraint api_keys_org_id_service_account_id_fkey FOREIGN KEY (org_id, service_account_id) REFERENCES service_accounts(org_id, id) ON DELETE CASCADE,
  constraint api_keys_org_id_user_id_fkey FOREIGN KEY (org_id, user_id) REFERENCES memberships(org_id, user_id) ON DELETE CASCADE,
  constraint api_keys_parent_key_fkey FOREIGN KEY (parent_key) REFERENCES api_keys(id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
  constraint api_keys_holder CHECK (((user_id IS NULL) <> (service_account_id IS NULL)))
);

-- The last link of each organisation's chain of audit entries.
create table audit_heads (
  org_id text not null,
  -- The number of the last entry in the chain.
  seq bigint not null,
  -- The MAC of the last entry in the chain.
  mac bytea not null,
  constraint audit_heads_pkey PRIMARY KEY (org_id)
);

-- Who did what, when and from where. Without foreign keys: entries outlive everything that they name. A task adds new entries to their organisation's chain.
create table audit_log (
  org_id text not null,
  -- The entry's number in the chain. Null: it is not in the chain yet.
  seq bigint,
  id text not null,
  -- When it happened.
  at timestamp with time zone not null,
  -- The id of the principal, or "system".
  actor text not null,
  -- What was done, such as "api_key.revoked".
  action text not null,
  -- The id of what it was done to. Null: nothing in particular.
  target text,
  -- The address of the client. Null: no request caused it.
  ip text,
  -- The X-Request-Id of the request. Null: no request caused it.
  request_id text,
  -- Details of the action.
  data jsonb not null,
  -- Before the entry is in the chain: a MAC of the entry alone. Then: a MAC of the entry and of the MAC before it.
  mac bytea not null,
  -- The order of the inserts, in which entries are added to the chain.
  serial bigint not null generated always as identity,
  constraint audit_log_pkey PRIMARY KEY (org_id, id)
);

-- One-time tickets for a VM's serial console, or for an exec's stream. A ticket opens it with the credential that asked for the ticket, which is checked for as long as it is open.
create table console_tickets (
  -- SHA-256 of the ticket.
  ticket_hash bytea not null,
  instance_id text not null,
  -- The exec that the ticket is for. Null: it is for the console.
  exec_id text,
  org_id text not null,
  -- What asked for the ticket: a session or an API key.
  credential_kind text not null,
  -- The id of that session or API key.
  credential_id text not null,
  -- SHA-256 of the API key's token at that time: a rotation keeps the key's id, and ends what the old token opened. Null for a session.
  secret_hash bytea,
  expires_at timestamp with time zone not null,
  constraint console_tickets_pkey PRIMARY KEY (ticket_hash),
  constraint console_tickets_exec_id_fkey FOREIGN KEY (exec_id) REFERENCES execs(id) ON DELETE CASCADE,
  constraint console_tickets_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint console_tickets_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint console_tickets_check CHECK (((credential_kind = 'key'::text) = (secret_hash IS NOT NULL))),
  constraint console_tickets_credential_kind_check CHECK ((credential_kind = ANY (ARRAY['session'::text, 'key'::text])))
);

-- Control planes that hosts, ingresses and other control planes reach.
create table control_planes (
  -- New at each start of the process. Ids of its calls to hosts begin with it.
  id text not null,
  -- Where its internal API is reached.
  url text not null,
  -- The fingerprint of the certificate that it shows there.
  fingerprint text not null,
  started_at timestamp with time zone not null default now(),
  -- The control plane renews it. It counts as live for 15 s.
  seen_at timestamp with time zone not null default now(),
  constraint control_planes_pkey PRIMARY KEY (id),
  constraint control_planes_id_check CHECK ((id ~ '^[0-9a-f]{12}$'::text))
);

-- The keys that encrypt the objects of instances.
create table data_keys (
  instance_id text not null,
  -- The key's id, which objects name. Forks have a key under the same id.
  key_id text not null,
  -- The key, encrypted and bound to the instance.
  wrapped bytea not null,
  -- disk: it encrypts the disk's new objects. memory: it encrypts the memory of a suspended VM. reading: it only decrypts existing objects. A fork gets its parent's disk keys for reading, and the parent a new one to write with; no fork gets a memory key.
  use text not null,
  -- Objects were written with it, so a fork needs it.
  used boolean not null default false,
  -- Of a replaced key: a flush that was under way may still commit with it, up to this generation.
  until_generation bigint,
  created_at timestamp with time zone not null default now(),
  constraint data_keys_pkey PRIMARY KEY (instance_id, key_id),
  constraint data_keys_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint data_keys_use_check CHECK ((use = ANY (ARRAY['disk'::text, 'memory'::text, 'reading'::text])))
);

-- Instances that were deleted while a host that may have files of them was lost. The host asks when it is back, and then removes the files.
create table deleted_instances (
  instance_id text not null,
  constraint deleted_instances_pkey PRIMARY KEY (instance_id)
);

-- What VMs were denied to reach, merged by destination: the last 100 of each instance.
create table denied_destinations (
  instance_id text not null,
  -- The name, or the address where no name is known.
  destination text not null,
  -- 0: a look-up, or a protocol without ports.
  port integer not null,
  -- The name that the guest asked for. Null: unknown.
  name text,
  -- The address of the last attempt. Null: it was a look-up.
  address text,
  -- The last attempt.
  at timestamp with time zone not null,
  -- How often the VM tried.
  attempts bigint not null,
  -- The last event about it. Null: there was none.
  event_at timestamp with time zone,
  constraint denied_destinations_pkey PRIMARY KEY (instance_id, destination, port),
  constraint denied_destinations_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

-- Logins that a program asks for and a person confirms in a browser.
create table device_logins (
  -- SHA-256 of the code with which the program polls.
  device_hash bytea not null,
  -- Eight letters that the person compares.
  user_code text not null,
  -- The program also asks for a sudo grant.
  sudo boolean not null,
  -- The address of the program.
  ip text not null,
  -- The User-Agent of the program.
  user_agent text not null,
  -- The session that confirmed the login, and whose end removes it. Null: nobody has confirmed it.
  confirmed_by text,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  constraint device_logins_pkey PRIMARY KEY (device_hash),
  constraint device_logins_user_code_key UNIQUE (user_code),
  constraint device_logins_confirmed_by_fkey FOREIGN KEY (confirmed_by) REFERENCES sessions(id) ON DELETE CASCADE
);

-- The disk of each instance.
create table disks (
  instance_id text not null,
  size_bytes bigint not null,
  -- The version of the image below the generations, fixed at the first start. Null: not started yet.
  image_version text,
  -- The number of the head, the newest generation. 0: there is none yet.
  generation bigint not null default 0,
  -- The random id of the head. A database that was restored or failed over may reach the same number again with other content; the id then differs.
  commit_id uuid not null default gen_random_uuid(),
  -- Incremented by each placement of a VM. Writes of an older epoch are refused.
  epoch bigint not null default 0,
  -- When the head was committed. Null: there is none yet.
  durable_at timestamp with time zone,
  -- The size of the objects that the disk holds.
  stored_bytes bigint not null default 0,
  -- What the VM has written since the last flush, as its host last reported.
  dirty_bytes bigint not null default 0,
  -- Set above 90 % use of the root file system, cleared below 85 %.
  nearly_full boolean not null default false,
  -- What became of the last increase of the size: the guest's root file system has grown, or grows at the next boot. Null: it was never increased.
  growth text,
  -- Blocks in the order in which the last boot that loads blocks on demand first read them. The next such boot loads them ahead.
  boot_order integer[] not null default '{}'::integer[],
  -- The disk may hold objects that none of its generations needs: a fork holds all that its parent held.
  holds_more boolean not null default false,
  -- A process compacts the disk, or has failed to: others leave it alone until then. Correctness does not depend on it.
  compacting_until timestamp with time zone,
  constraint disks_pkey PRIMARY KEY (instance_id),
  constraint disks_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint disks_boot_order_check CHECK ((cardinality(boot_order) <= 4096)),
  constraint disks_growth_check CHECK ((growth = ANY (ARRAY['done'::text, 'next_boot'::text])))
);

-- The end of the event stream. One row, which the dispatcher locks.
create table event_head (
  only_one boolean not null default true,
  -- The highest position that was given so far.
  position bigint not null default 0,
  constraint event_head_pkey PRIMARY KEY (only_one),
  constraint event_head_only_one_check CHECK (only_one)
);

-- What happened: the outbox of webhooks, notifications and event streams. A row is written in the transaction that it tells of, and deleted after 30 days.
create table events (
  id text not null,
  -- The organisation that it concerns. Null: it concerns an account, and only notifications tell of it.
  org_id text,
  -- The account that it concerns. Null: it concerns an organisation.
  user_id text,
  -- The instance that it concerns. Null: none.
  instance_id text,
  -- Numbers the events of the instance.
  sequence bigint,
  -- What happened, such as "vm.started" (src/control-plane/events/model.ts).
  type text not null,
  -- Details, by type.
  data jsonb not null,
  -- Who caused it: the id of a principal or host, or "system".
  actor text not null,
  -- The order of the inserts.
  serial bigint not null generated always as identity,
  -- The event's position in the stream. The dispatcher gives it, so positions follow commits. Null: not dispatched yet.
  position bigint,
  created_at timestamp with time zone not null default now(),
  constraint events_pkey PRIMARY KEY (id),
  constraint events_owner CHECK (((org_id IS NOT NULL) OR (user_id IS NOT NULL)))
);

-- Commands in guests that outlive their callers. Their output is on the host.
create table execs (
  id text not null,
  instance_id text not null,
  -- The host that has its output; the newest one, if its VM was moved.
  host_id text not null,
  -- The program and its arguments.
  command text[] not null,
  -- It has a terminal.
  tty boolean not null,
  -- Callers may send it input.
  stdin boolean not null,
  -- starting: its host has not answered yet, and callers do not see it.
  state text not null default 'starting'::text,
  -- Null: it has not ended, or a signal ended it, or its end is unknown.
  exit_code integer,
  -- The signal that ended it. Null: none did.
  signal integer,
  -- It was ended because its time was up.
  timed_out boolean not null default false,
  -- Of a lost exec: what ended before the exec's own end was known. Else null.
  lost_with text,
  -- How much output it has had, as its host last reported.
  output_bytes bigint not null default 0,
  -- Its input is open and nobody is attached, as its host last reported. Never set without input.
  waits boolean not null default false,
  started_at timestamp with time zone not null default now(),
  ended_at timestamp with time zone,
  constraint execs_pkey PRIMARY KEY (id),
  constraint execs_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint execs_check CHECK (((ended_at IS NULL) = (state = ANY (ARRAY['starting'::text, 'running'::text])))),
  constraint execs_check1 CHECK (((exit_code IS NULL) OR (signal IS NULL))),
  constraint execs_check2 CHECK (((lost_with IS NOT NULL) = (state = 'lost'::text))),
  constraint execs_lost_with_check CHECK ((lost_with = ANY (ARRAY['boot'::text, 'supervisor'::text]))),
  constraint execs_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'exited'::text, 'lost'::text])))
);

-- Flushes that callers wait for: at most one queued and one running for each instance.
create table flushes (
  id text not null,
  instance_id text not null,
  vm_id text not null,
  -- The first of those who wait for it.
  requested_by text not null,
  state text not null,
  finished_at timestamp with time zone,
  -- The answer to those who wait. Null: it is not done.
  receipt jsonb,
  -- Why it failed: {code, message}. Null: it has not.
  error jsonb,
  -- The request that asked for it, and its span: {request_id, traceparent}.
  trace_context jsonb,
  constraint flushes_pkey PRIMARY KEY (id),
  constraint flushes_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint flushes_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'done'::text, 'failed'::text])))
);

-- SSH addresses without an instance, taken in the order of the index. The control plane adds those of its range when it starts.
create table free_ssh_ports (
  -- The name of the address.
  host text not null default '127.0.0.1'::text,
  -- The port of the address.
  port integer not null,
  -- When the last instance that ran at this address was deleted. Null: none ran.
  quarantined_at timestamp with time zone,
  constraint free_ssh_ports_pkey PRIMARY KEY (host, port)
);

-- Durable states of disks.
create table generations (
  instance_id text not null,
  -- The number of the generation in its disk.
  generation bigint not null,
  -- A random id, because a restored database may give a number again.
  commit_id uuid not null default gen_random_uuid(),
  -- The epoch of the VM that wrote it.
  epoch bigint not null,
  -- The generation that its changes apply to. Null: they apply to the image.
  parent bigint,
  -- The objects with its changes, in order: [{key, size_bytes, entries, …}] (SegmentRef in src/protocol).
  segments jsonb not null,
  -- An object with the index of the segments: {key, size_bytes, full, key_id}; full: of the whole chain up to here. Null: there is none, and readers read the segments.
  map jsonb,
  -- The size of its new objects.
  bytes bigint not null,
  -- How far the guest was prepared: its file systems were frozen, it was not asked (as after a crash), or its VM had ended.
  consistency text not null,
  -- What made it: a request, an automatic flush, the last flush of a stop or suspend, an import, a fork or a restore.
  trigger text not null default 'request'::text,
  -- What the content of a fork or a restore was taken from, which may be gone: {instance_id, generation}. Else null.
  origin jsonb,
  -- What the flush found to save. Null: no flush made it.
  dirty_bytes bigint,
  -- How many segments the flush wrote. Null: no flush made it.
  segment_count integer,
  -- How long the flush took. Null: unknown.
  duration_ms bigint,
  -- The user's name for it. Null: none.
  name text,
  -- Retention keeps it.
  pinned boolean not null default false,
  -- False: users no longer see it; it is kept only as a link of the chain that other generations need.
  retained boolean not null default true,
  created_at timestamp with time zone not null default now(),
  constraint generations_pkey PRIMARY KEY (instance_id, generation),
  constraint generations_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES disks(instance_id) ON DELETE CASCADE,
  constraint generations_parent_fkey FOREIGN KEY (instance_id, parent) REFERENCES generations(instance_id, generation),
  constraint generations_consistency_check CHECK ((consistency = ANY (ARRAY['filesystem'::text, 'crash'::text, 'offline'::text]))),
  constraint generations_parent CHECK ((parent < generation)),
  constraint generations_trigger_check CHECK ((trigger = ANY (ARRAY['request'::text, 'auto'::text, 'stop'::text, 'suspend'::text, 'import'::text, 'fork'::text, 'restore'::text])))
);

-- How many VMs each organisation has on each host, so that a placement spreads them.
create table host_org_use (
  host_id text not null,
  org_id text not null,
  -- VMs of the organisation that are on the host.
  vms integer not null default 0,
  constraint host_org_use_pkey PRIMARY KEY (host_id, org_id),
  constraint host_org_use_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE,
  constraint host_org_use_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE
);

-- The number of each instance on each host. It keeps the number for life, because its files there belong to the slot's user.
create table host_slots (
  host_id text not null,
  -- The VM's user, TAP device and address on the host follow from it.
  slot integer not null,
  instance_id text not null,
  constraint host_slots_pkey PRIMARY KEY (host_id, slot),
  constraint host_slots_host_id_instance_id_key UNIQUE (host_id, instance_id),
  constraint host_slots_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE,
  constraint host_slots_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint host_slots_slot_check CHECK (((slot >= 1) AND (slot <= 65535)))
);

-- What VMs use of each host, so that a placement need not count. Placements on one host wait for each other here.
create table host_use (
  host_id text not null,
  -- VMs that are on the host and use its CPUs.
  vms integer not null default 0,
  -- The memory of these VMs.
  memory_mib bigint not null default 0,
  constraint host_use_pkey PRIMARY KEY (host_id),
  constraint host_use_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE
);

-- Machines that run VMs. A removed host keeps its row for the VMs that ran there; another host of its name has a row of its own.
create table hosts (
  id text not null,
  name text not null,
  -- The host is another machine: its VMs are reached through the agent's own connection, and addresses that it reports are not dialled.
  remote boolean not null default false,
  -- SHA-256 of the agent's credential.
  token_hash bytea not null,
  -- SHA-256 of the credential that replaces the present one once the agent has used it.
  next_token_hash bytea,
  -- Since when the agent has used its present credential.
  credential_since timestamp with time zone not null default now(),
  -- The agent is to replace its credential now.
  rotate_requested boolean not null default false,
  -- SHA-256 of the one-time join token. It stays after its use, so that a host whose answer was lost may repeat the join.
  join_hash bytea,
  -- Until when the join token is accepted.
  join_expires_at timestamp with time zone,
  -- The version of the agent protocol that the agent last spoke. Null: it has not called yet.
  protocol integer,
  -- What the agent last reported about its machine (HostFacts in src/protocol).
  facts jsonb,
  -- The CPUs that VMs may use on a remote host. Null: the operator has not said.
  cpus integer,
  -- The memory that VMs may use on a remote host. Null: the operator has not said.
  memory_mib integer,
  -- The operator's labels, such as {"zone": "a"}, which instances may ask for.
  labels jsonb not null default '{}'::jsonb,
  -- The host takes only instances that tolerate all of these.
  taints text[] not null default '{}'::text[],
  -- The host gets no new VM.
  cordoned boolean not null default false,
  -- Its VMs are moved to other hosts. A draining host is also cordoned.
  draining boolean not null default false,
  -- How many VMs it had when its drain began. Null: it is not drained.
  drain_vms integer,
  -- Incremented by each renewal of the lease. A control plane sees by it that the host lives, without comparing clocks.
  beat bigint not null default 0,
  -- The length of the host's lease. When it expires, the host pauses its VMs. Null: no lease, and the host is never lost.
  lease_ms integer,
  -- Since when the lease has been expired. Null: the host is not lost.
  lost_at timestamp with time zone,
  -- The last call of the agent.
  last_seen_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  -- When the operator removed the host and revoked its credential. Null: it is part of the fleet.
  removed_at timestamp with time zone,
  constraint hosts_pkey PRIMARY KEY (id),
  constraint hosts_join_hash_key UNIQUE (join_hash),
  constraint hosts_next_token_hash_key UNIQUE (next_token_hash),
  constraint hosts_token_hash_key UNIQUE (token_hash),
  constraint hosts_cpus_check CHECK ((cpus > 0)),
  constraint hosts_lease_ms_check CHECK ((lease_ms > 0)),
  constraint hosts_memory_mib_check CHECK ((memory_mib > 0))
);

-- Cookies of browsers that redeemed a ticket, each for one hostname.
create table http_cookies (
  -- SHA-256 of the cookie's value.
  cookie_hash bytea not null,
  port_id text not null,
  -- The hostname that the cookie is for.
  hostname text not null,
  -- The session that asked for the ticket, with which access ends.
  session_id text not null,
  org_id text not null,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  constraint http_cookies_pkey PRIMARY KEY (cookie_hash),
  constraint http_cookies_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint http_cookies_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE,
  constraint http_cookies_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

-- Hostnames of users. Several ports may wait for a hostname; one has it, while the TXT record is found.
create table http_hostnames (
  port_id text not null,
  -- The hostname, in lower case.
  hostname text not null,
  -- The value that the TXT record must have.
  proof text not null,
  -- Since when the port has had the hostname. Null: it waits for the TXT record.
  active_at timestamp with time zone,
  -- When the TXT record was last looked up. Null: not yet.
  checked_at timestamp with time zone,
  -- Why the last look-up found no record. Null: it did, or there was none.
  problem text,
  -- When the TXT record is looked up next.
  next_check_at timestamp with time zone not null default now(),
  created_at timestamp with time zone not null default now(),
  constraint http_hostnames_pkey PRIMARY KEY (port_id, hostname),
  constraint http_hostnames_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE
);

-- Every label that a port's hostname ever began with. Rows are never deleted, so no label is given twice.
create table http_labels (
  -- The first label of a hostname.
  label text not null,
  constraint http_labels_pkey PRIMARY KEY (label)
);

-- What ingresses reported of each port. A table of its own, because it changes every few seconds.
create table http_port_use (
  port_id text not null,
  -- The beginning of the last minute with a report.
  minute timestamp with time zone not null,
  -- Requests in that minute.
  requests bigint not null,
  -- Requests in the minute before.
  previous_requests bigint not null,
  -- Bytes to clients, in total.
  sent_bytes bigint not null default 0,
  -- Bytes from clients, in total.
  received_bytes bigint not null default 0,
  -- The newest answer of Berth instead of the guest: {at, code, message}. Null: there was none.
  last_error jsonb,
  constraint http_port_use_pkey PRIMARY KEY (port_id),
  constraint http_port_use_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE
);

-- Ports in guests that the ingress serves under a hostname.
create table http_ports (
  id text not null,
  instance_id text not null,
  -- The first label of its hostname; BERTH_HTTP_DOMAIN is the rest.
  label text not null,
  -- The port in the guest.
  port integer not null,
  -- Who may use it: members of the organisation, or everybody.
  access text not null,
  -- Incremented by each change of the port or of its hostnames. It is the ETag.
  version bigint not null default 1,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  constraint http_ports_pkey PRIMARY KEY (id),
  constraint http_ports_label_key UNIQUE (label),
  constraint http_ports_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint http_ports_label_fkey FOREIGN KEY (label) REFERENCES http_labels(label),
  constraint http_ports_access_check CHECK ((access = ANY (ARRAY['private'::text, 'public'::text]))),
  constraint http_ports_port_check CHECK (((port >= 1) AND (port <= 65535)))
);

-- One-time tickets that open a private port in a browser.
create table http_tickets (
  -- SHA-256 of the ticket.
  ticket_hash bytea not null,
  port_id text not null,
  -- The hostname that the browser opens.
  hostname text not null,
  -- The session that asked for it, with which access ends.
  session_id text not null,
  org_id text not null,
  expires_at timestamp with time zone not null,
  constraint http_tickets_pkey PRIMARY KEY (ticket_hash),
  constraint http_tickets_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint http_tickets_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE,
  constraint http_tickets_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

-- Responses of successful requests, for requests that repeat their Idempotency-Key.
create table idempotency_keys (
  org_id text not null,
  -- The id of the account, API key or service account that sent the request.
  principal text not null,
  -- Method and path pattern of the route.
  route text not null,
  -- The request's Idempotency-Key.
  key text not null,
  -- SHA-256 of the canonical request, to refuse another request with the same key.
  fingerprint bytea not null,
  -- The HTTP status of the response.
  status integer not null,
  -- The body of the response, encrypted.
  response bytea not null,
  expires_at timestamp with time zone not null,
  constraint idempotency_keys_pkey PRIMARY KEY (org_id, principal, route, key),
  constraint idempotency_keys_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE
);

-- Which account belongs to which user of an OpenID provider.
create table identities (
  -- The provider.
  issuer text not null,
  -- The provider's id of the user.
  subject text not null,
  user_id text not null,
  -- The provider's refresh token, encrypted. Null: the provider gave none, or has refused it.
  refresh_token bytea,
  -- When the provider last answered for the user.
  checked_at timestamp with time zone not null default now(),
  -- Until then one process asks the provider and others wait, because most refresh tokens may be used only once.
  claimed_until timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  constraint identities_pkey PRIMARY KEY (issuer, subject),
  constraint identities_issuer_user_id_key UNIQUE (issuer, user_id),
  constraint identities_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- Base images in the object store. A row is written after its objects.
create table image_versions (
  -- The name of the image, such as debian-12.
  image_id text not null,
  -- SHA-256 of the root file system.
  version text not null,
  -- What the image was built from. Two builds of one recipe have different versions and are equally good.
  recipe text not null,
  -- SHA-256 of the object that lists the image's other objects with their hashes.
  index_sha256 text not null,
  -- The size of the root file system. No disk may be smaller.
  size_bytes bigint not null,
  -- The size of the image's objects.
  stored_bytes bigint not null,
  -- New disks use this version.
  current boolean not null default false,
  -- When the version was removed: hosts that still have it delete their copy and do not offer it again. Null: it is in use.
  removed_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  constraint image_versions_pkey PRIMARY KEY (image_id, version),
  constraint image_versions_index_sha256_check CHECK ((index_sha256 ~ '^[0-9a-f]{64}$'::text)),
  constraint image_versions_version_check CHECK ((version ~ '^[0-9a-f]{64}$'::text))
);

-- Processes that hold the ports of instances.
create table ingresses (
  id text not null,
  name text not null,
  -- SHA-256 of the ingress' credential.
  token_hash bytea not null,
  -- The host of the same machine, whose VMs the ingress dials itself. Null: it is on another machine, and every connection takes a tunnel.
  host_id text,
  -- The version of the agent protocol that it last spoke. Null: it has not called yet.
  protocol integer,
  -- Since when it has counted connections without a gap. Null: it has not reported yet.
  watching_since timestamp with time zone,
  -- When it last reported. Null: it has not reported yet.
  reported_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  constraint ingresses_pkey PRIMARY KEY (id),
  constraint ingresses_name_key UNIQUE (name),
  constraint ingresses_token_hash_key UNIQUE (token_hash),
  constraint ingresses_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE
);

-- What all control planes of the installation share. At most one row.
create table installation (
  only_one boolean not null default true,
  -- The key that every other key of the installation is derived from, encrypted with the secret key.
  root_key bytea not null,
  -- The same key, encrypted with the secret key that is to replace the present one. Null: none is.
  new_root_key bytea,
  -- PEM. The certificate that hosts, ingresses and other control planes pin. Null: no control plane has listened to hosts yet.
  hosts_certificate text,
  -- The certificate's private key, encrypted.
  hosts_key bytea,
  -- PEM. The certificate that replaces it once every control plane shows it. Hosts learn of it first. Null: none does.
  next_certificate text,
  -- The next certificate's private key, encrypted.
  next_key bytea,
  -- When a control plane last sent the next certificate to hosts.
  next_announced_at timestamp with time zone,
  -- For how long control planes have sent the next certificate to hosts, without the gaps.
  next_announced_seconds real not null default 0,
  constraint installation_pkey PRIMARY KEY (only_one),
  constraint installation_check CHECK (((hosts_certificate IS NULL) = (hosts_key IS NULL))),
  constraint installation_check1 CHECK (((next_certificate IS NULL) = (next_key IS NULL))),
  constraint installation_only_one_check CHECK (only_one)
);

-- The certificate authority of an instance's intercepted connections, which its guest trusts. It is made with the instance's first secret and deleted with the last one.
create table instance_authorities (
  instance_id text not null,
  -- PEM.
  certificate text not null,
  -- PEM, encrypted and bound to the instance.
  private_key bytea not null,
  created_at timestamp with time zone not null default now(),
  constraint instance_authorities_pkey PRIMARY KEY (instance_id),
  constraint instance_authorities_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

-- The SSH keys that an instance with ssh_key_mode explicit accepts.
create table instance_ssh_keys (
  instance_id text not null,
  ssh_key_id text not null,
  constraint instance_ssh_keys_pkey PRIMARY KEY (instance_id, ssh_key_id),
  constraint instance_ssh_keys_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint instance_ssh_keys_ssh_key_id_fkey FOREIGN KEY (ssh_key_id) REFERENCES ssh_keys(id) ON DELETE CASCADE
);

-- What users have: a disk, settings, an SSH address, and at most one running VM.
create table instances (
  id text not null,
  org_id text not null,
  -- The account or service account that created it.
  created_by text not null,
  name text not null,
  -- The user's labels, by name.
  labels jsonb not null default '{}'::jsonb,
  -- The image that its disk began with.
  image text not null,
  cpus integer not null,
  memory_mib integer not null,
  disk_gib integer not null,
  -- A running VM that nobody uses for so long is stopped. Null: never.
  idle_timeout_seconds integer,
  -- A connection to the stopped instance starts its VM.
  wake_on_connect boolean not null default false,
  -- Whether a failed VM is started again by itself.
  restart text not null default 'never'::text,
  -- The time between automatic flushes. Null: none.
  auto_flush_seconds integer,
  -- Retention keeps the newest generations, as many as this.
  keep_last integer not null default 24,
  -- Retention also keeps the newest generation of each of the last days, as many as this.
  keep_daily_days integer not null default 14,
  -- The egress policy: what the VM may reach.
  egress_mode text not null default 'open'::text,
  -- What mode allow permits, in the form of src/shared/egress-policy.ts.
  egress_allow text[] not null default '{}'::text[],
  -- The labels that a host of its VM must have.
  host_labels jsonb not null default '{}'::jsonb,
  -- The taints of hosts that its VM may nevertheless run on.
  tolerations text[] not null default '{}'::text[],
  -- The name of its SSH address (BERTH_SSH_HOST). The control plane's start renews it.
  ssh_host text not null default '127.0.0.1'::text,
  -- The port of its SSH address, fixed for the instance's life.
  ssh_port integer not null,
  -- Which SSH keys the guest accepts: account, those of its creator; explicit, those of instance_ssh_keys.
  ssh_key_mode text not null default 'account'::text,
  -- The guest's SSH host keys, as its host reported them. Null: unknown yet.
  host_keys jsonb,
  -- What it was forked from, which may be gone: {instance_id, generation, dirty_bytes}. Null: it is no fork.
  forked_from jsonb,
  -- The instance is being deleted: users no longer see it, and its host removes its files.
  deleting boolean not null default false,
  -- The number of its last event. Old events are deleted; their numbers are not used again.
  event_sequence bigint not null default 0,
  -- Incremented by each change of the row. It guards updates and is the ETag.
  version bigint not null default 1,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  constraint instances_pkey PRIMARY KEY (id),
  constraint instances_org_id_name_key UNIQUE (org_id, name),
  constraint instances_ssh_address UNIQUE (ssh_host, ssh_port),
  constraint instances_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id),
  constraint instances_egress_mode_check CHECK ((egress_mode = ANY (ARRAY['open'::text, 'deny'::text, 'allow'::text]))),
  constraint instances_restart_check CHECK ((restart = ANY (ARRAY['never'::text, 'on_failure'::text]))),
  constraint instances_ssh_key_mode_check CHECK ((ssh_key_mode = ANY (ARRAY['account'::text, 'explicit'::text])))
);

-- Invitations that were not accepted yet.
create table invitations (
  id text not null,
  org_id text not null,
  -- The address that the invitation was sent to.
  email text not null,
  -- The role of the new member.
  role text not null,
  -- SHA-256 of the invitation's token.
  token_hash bytea not null,
  -- The account that invited.
  invited_by text not null,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  constraint invitations_pkey PRIMARY KEY (id),
  constraint invitations_token_hash_key UNIQUE (token_hash),
  constraint invitations_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint invitations_role_check CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'billing'::text])))
);

-- Where an account has logged in from. A login from elsewhere raises a notification.
create table known_locations (
  user_id text not null,
  -- A hash of account, network and browser.
  location_hash bytea not null,
  last_seen_at timestamp with time zone not null default now(),
  constraint known_locations_pkey PRIMARY KEY (user_id, location_hash),
  constraint known_locations_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- Failed logins by e-mail address, whether or not an account has the address.
create table lockouts (
  -- The e-mail address in lower case.
  email_key text not null,
  -- Consecutive failures since the last success or lock.
  failures integer not null default 0,
  -- How often the address was locked since the last success. Each lock lasts twice as long as the one before.
  locks integer not null default 0,
  -- Until then even a correct password is refused. Null: not locked.
  locked_until timestamp with time zone,
  updated_at timestamp with time zone not null default now(),
  constraint lockouts_pkey PRIMARY KEY (email_key)
);

-- Mails of the last quarter of an hour, to bound how many one address receives.
create table mail_counts (
  -- The address in lower case.
  address text not null,
  -- The kind of mail.
  kind text not null,
  -- When mails of the kind went to the address, oldest first.
  sent_at timestamp with time zone[] not null,
  constraint mail_counts_pkey PRIMARY KEY (address, kind)
);

-- Single-use tokens that were sent by mail.
create table mail_tokens (
  -- SHA-256 of the token.
  token_hash bytea not null,
  -- What the token does: reset the password, or confirm an e-mail address.
  kind text not null,
  user_id text not null,
  -- confirm_email: the address that the token confirms. Else null.
  email text,
  expires_at timestamp with time zone not null,
  constraint mail_tokens_pkey PRIMARY KEY (token_hash),
  constraint mail_tokens_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint mail_tokens_kind_check CHECK ((kind = ANY (ARRAY['password_reset'::text, 'confirm_email'::text])))
);

-- The outbox of all mails. A sent mail is deleted.
create table mails (
  id text not null,
  -- What it is for, such as "password_reset".
  kind text not null,
  -- The account that a mail of notifications goes to. Null: any other mail.
  user_id text,
  -- Address, subject and text, encrypted: the text may carry a token.
  content bytea not null,
  -- Failed attempts.
  attempts integer not null default 0,
  -- The next attempt. A process that sends the mail moves it on first, as its lease.
  due_at timestamp with time zone not null default now(),
  -- From then on it is not sent any more.
  expires_at timestamp with time zone not null,
  constraint mails_pkey PRIMARY KEY (id),
  constraint mails_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- Members of organisations.
create table memberships (
  org_id text not null,
  user_id text not null,
  -- What the member may do (docs/permissions.md).
  role text not null,
  -- The groups of the OpenID provider decide the role, and whether the membership exists.
  by_groups boolean not null default false,
  created_at timestamp with time zone not null default now(),
  constraint memberships_pkey PRIMARY KEY (org_id, user_id),
  constraint memberships_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint memberships_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint memberships_role_check CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'billing'::text])))
);

-- The memory of suspended VMs, in the object store. It belongs to the suspended VM, then to the boot that resumes it. It is deleted once that VM is neither suspended nor starting, or once it belongs to none.
create table memory_images (
  -- What the keys of all its objects begin with.
  key text not null,
  instance_id text not null,
  -- The VM that may resume from it. Null: none may, because it was used.
  vm_id text,
  -- What a host needs to load it (MemoryRef in src/protocol).
  ref jsonb not null,
  created_at timestamp with time zone not null default now(),
  constraint memory_images_pkey PRIMARY KEY (key),
  constraint memory_images_vm_id_key UNIQUE (vm_id),
  constraint memory_images_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

-- What VMs used: by the minute for a day, by the hour for 30 days. A period without a running VM has no row. Without a foreign key, whose check would wait for changes of the instance and hold them up; a deletion of the instance deletes its rows.
create table metric_samples (
  instance_id text not null,
  -- The beginning of the period.
  at timestamp with time zone not null,
  -- The length of the period.
  seconds integer not null,
  -- How many minutes of the period were measured.
  minutes smallint not null,
  -- The mean of each of METRICS (src/protocol/host-types.ts), in its order. An element is null where nothing was measured; so in mins and maxs.
  means real[] not null,
  -- The least value of each.
  mins real[] not null,
  -- The greatest value of each.
  maxs real[] not null,
  constraint metric_samples_pkey PRIMARY KEY (instance_id, at),
  constraint metric_samples_seconds_check CHECK ((seconds = ANY (ARRAY[60, 3600])))
);

-- Second factors of accounts.
create table mfa_factors (
  id text not null,
  user_id text not null,
  -- An app with time-based codes, or a security key or passkey.
  type text not null,
  name text not null,
  -- totp: the secret, encrypted. webauthn: null.
  secret bytea,
  -- webauthn: {id, public_key, counter, transports}. totp: null.
  credential jsonb,
  -- totp: the last time step that was accepted, so that a code works once.
  last_step bigint,
  -- When the factor was first used. Null: it is not set up yet and does not count.
  confirmed_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  last_used_at timestamp with time zone,
  constraint mfa_factors_pkey PRIMARY KEY (id),
  constraint mfa_factors_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint mfa_factors_type_check CHECK ((type = ANY (ARRAY['totp'::text, 'webauthn'::text])))
);

-- Preferences of accounts that differ from the default.
create table notification_preferences (
  user_id text not null,
  -- The kind of notification.
  kind text not null,
  -- Whether such notifications are also mailed.
  mail boolean not null,
  constraint notification_preferences_pkey PRIMARY KEY (user_id, kind),
  constraint notification_preferences_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- Notifications of accounts and service accounts.
create table notifications (
  id text not null,
  -- An account or a service account. Without a foreign key: deleting the recipient deletes its notifications.
  recipient text not null,
  -- The organisation that it concerns, whose API keys may read it. Null: it concerns the account.
  org_id text,
  -- What it tells, such as "vm.failed" (src/control-plane/notifications/model.ts).
  kind text not null,
  title text not null,
  body text not null,
  -- The kind of resource that it concerns. Null: none.
  resource_type text,
  -- The id of that resource.
  resource_id text,
  -- Details, by kind.
  data jsonb not null,
  -- How often it was raised while it was unread.
  count bigint not null,
  -- The position of the event that raised it last. Streams resume from it.
  position bigint not null,
  -- The event that raised it last.
  event_id text not null,
  created_at timestamp with time zone not null,
  -- When it was raised last.
  raised_at timestamp with time zone not null,
  -- Null: unread.
  read_at timestamp with time zone,
  -- It waits for a mail that is composed then, or later. Null: it waits for none.
  mail_after timestamp with time zone,
  constraint notifications_pkey PRIMARY KEY (recipient, id)
);

-- Processes that read objects, such as backups (src/control-plane/disks/keep-objects.ts).
create table object_readers (
  id uuid not null,
  -- Until then no task removes any object. The reader renews it.
  until timestamp with time zone not null,
  constraint object_readers_pkey PRIMARY KEY (id)
);

-- The object store that has this database's objects. At most one row.
create table object_stores (
  only_one boolean not null default true,
  -- The id in the store's own marker object.
  id text not null,
  -- When the marker object was written. From then on a store without it is refused as another one.
  marked_at timestamp with time zone,
  constraint object_stores_pkey PRIMARY KEY (only_one),
  constraint object_stores_only_one_check CHECK (only_one)
);

-- Processes that write objects which no row names yet (src/control-plane/disks/segment-store.ts). Meanwhile objects of the instance are not removed as orphans.
create table object_writers (
  id uuid not null,
  instance_id text not null,
  -- When the writer began. A row older than a day is deleted, and its writer then names nothing.
  since timestamp with time zone not null default now(),
  constraint object_writers_pkey PRIMARY KEY (id),
  constraint object_writers_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

-- How many event streams, notification streams and consoles each organisation has open at each control plane. Unlogged: a crash of the database may lose the counts.
create unlogged table open_streams (
  org_id text not null,
  -- The id of the control plane's process, which is new at each start.
  control_plane text not null,
  -- How many streams are open.
  count integer not null,
  -- The control plane renews it every 2 s. Rows that are older than 6 s do not count.
  seen_at timestamp with time zone not null default now(),
  constraint open_streams_pkey PRIMARY KEY (org_id, control_plane)
);

-- What owns instances, keys and webhooks, and what its members share.
create table organisations (
  id text not null,
  name text not null,
  -- The address for bills.
  billing_email text not null,
  -- The organisation's own quotas, such as {"instances": 50, "cpus": null}; null is unlimited. A missing quota has the default of the settings.
  quotas jsonb not null default '{}'::jsonb,
  -- The first administrator's organisation: its owners and admins see the whole installation. No other one ever becomes it.
  operator boolean not null default false,
  -- The account that created it and counts it in its quota. Null: no account did.
  created_by text,
  created_at timestamp with time zone not null default now(),
  constraint organisations_pkey PRIMARY KEY (id)
);

-- Unused codes that replace a lost second factor.
create table recovery_codes (
  user_id text not null,
  -- SHA-256 of the code, which is enough: a code has 80 random bits.
  code_hash bytea not null,
  constraint recovery_codes_pkey PRIMARY KEY (user_id, code_hash),
  constraint recovery_codes_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- Refresh tokens that were replaced a moment ago and are still accepted. Later use of a replaced token ends the session.
create table replaced_refresh_tokens (
  -- SHA-256 of the token.
  token_hash bytea not null,
  session_id text not null,
  replaced_at timestamp with time zone not null default clock_timestamp(),
  constraint replaced_refresh_tokens_pkey PRIMARY KEY (token_hash),
  constraint replaced_refresh_tokens_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

-- Requests of each address to the routes that take a password or a token, counted over all control planes. Columns and their order are those of rate-limiter-flexible, which also removes expired rows. Unlogged: a crash of the database may lose the counts.
create unlogged table request_counts (
  -- The limit and the address that it counts.
  key text not null,
  -- Requests in the present window.
  points integer not null default 0,
  -- When the window ends, in milliseconds since 1970.
  expire bigint,
  constraint request_counts_pkey PRIMARY KEY (key)
);

-- The migrations that were applied.
create table schema_migrations (
  -- The name of the file.
  name text not null,
  -- SHA-256 of the file, which never changes.
  sha256 text not null,
  -- The migration that a program must know to use the database after this one.
  needs text not null,
  applied_at timestamp with time zone not null default now(),
  constraint schema_migrations_pkey PRIMARY KEY (name)
);

-- Secrets that a VM uses and cannot read: the guest has the placeholder, its host the value.
create table secrets (
  -- The order of their creation.
  serial bigint not null generated always as identity,
  instance_id text not null,
  name text not null,
  -- Where the value may be sent: exact names, or "*." and a domain; in lower case.
  hosts text[] not null,
  -- What the guest has. It stays when the value is replaced.
  placeholder text not null,
  -- The value, encrypted and bound to instance and name. Null: a fork inherited the name without the value.
  value bytea,
  updated_at timestamp with time zone not null default now(),
  constraint secrets_pkey PRIMARY KEY (serial),
  constraint secrets_instance_id_name_key UNIQUE (instance_id, name),
  constraint secrets_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

-- The instances whose generations need an object. Forks share objects with their parents.
create table segment_holders (
  -- The key of the object.
  key text not null,
  instance_id text not null,
  constraint segment_holders_pkey PRIMARY KEY (key, instance_id),
  constraint segment_holders_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint segment_holders_key_fkey FOREIGN KEY (key) REFERENCES segments(key)
);

-- Objects of disks (segments and maps) that a generation names or has named.
create table segments (
  -- The key of the object in the object store.
  key text not null,
  size_bytes bigint not null,
  -- When a task first saw it without a holder. It is removed some time later. Null: it has a holder.
  unheld_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  constraint segments_pkey PRIMARY KEY (key)
);

-- Principals that are no people: each has a scope instead of a role.
create table service_accounts (
  id text not null,
  org_id text not null,
  name text not null,
  -- What the service account may do, such as "instances:read vm:write" or "*".
  scope text not null,
  -- The principal that created it.
  created_by text not null,
  created_at timestamp with time zone not null default now(),
  constraint service_accounts_pkey PRIMARY KEY (id),
  constraint service_accounts_of_org UNIQUE (org_id, id),
  constraint service_accounts_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE
);

-- Bearer tokens of sessions.
create table session_tokens (
  -- SHA-256 of the token.
  token_hash bytea not null,
  session_id text not null,
  expires_at timestamp with time zone not null,
  constraint session_tokens_pkey PRIMARY KEY (token_hash),
  constraint session_tokens_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

-- Logins. A session lasts up to 30 days; its bearer tokens last an hour each and are renewed with its refresh token.
create table sessions (
  id text not null,
  user_id text not null,
  -- SHA-256 of the random part that all refresh tokens of the session share. It finds the session of a replaced token too.
  refresh_family bytea,
  -- SHA-256 of the present refresh token.
  refresh_hash bytea,
  -- The address that logged in.
  ip text not null,
  -- The User-Agent that logged in.
  user_agent text not null,
  created_at timestamp with time zone not null default now(),
  last_seen_at timestamp with time zone not null default now(),
  -- The session is over then, however often it is refreshed.
  ends_at timestamp with time zone not null,
  constraint sessions_pkey PRIMARY KEY (id),
  constraint sessions_refresh_family_key UNIQUE (refresh_family),
  constraint sessions_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- SSH public keys of accounts.
create table ssh_keys (
  id text not null,
  user_id text not null,
  -- Of a key that an API key registered: it grants access to this organisation's instances only, and ends with its owner's membership. Null: it grants access wherever its owner's keys do.
  org_id text,
  name text not null,
  -- The algorithm, such as ssh-ed25519.
  type text not null,
  -- SHA-256 as ssh-keygen shows it: SHA256:…
  fingerprint text not null,
  -- Type and key as in authorized_keys, without comment.
  public_key text not null,
  -- The API key that registered it, or that key's nearest ancestor that still exists. Null: there is none.
  parent_key text,
  created_at timestamp with time zone not null default now(),
  -- When a guest last accepted it.
  last_used_at timestamp with time zone,
  constraint ssh_keys_pkey PRIMARY KEY (id),
  constraint ssh_keys_user_id_fingerprint_key UNIQUE (user_id, fingerprint),
  constraint ssh_keys_org_id_user_id_fkey FOREIGN KEY (org_id, user_id) REFERENCES memberships(org_id, user_id) ON DELETE CASCADE,
  constraint ssh_keys_parent_key_fkey FOREIGN KEY (parent_key) REFERENCES api_keys(id) ON DELETE SET NULL,
  constraint ssh_keys_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- Recent password checks. The sudo cookie carries the token of one for five minutes.
create table sudo_grants (
  -- SHA-256 of the cookie's token.
  token_hash bytea not null,
  session_id text not null,
  user_id text not null,
  expires_at timestamp with time zone not null,
  constraint sudo_grants_pkey PRIMARY KEY (token_hash),
  constraint sudo_grants_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE,
  constraint sudo_grants_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

-- How far usage is counted. One row.
create table usage_clock (
  only_one boolean not null default true,
  -- Until when running time and memory are counted.
  counted_until timestamp with time zone not null default now(),
  -- Until when stored bytes are counted. A reader adds what is stored since then.
  stored_until timestamp with time zone not null default now(),
  constraint usage_clock_pkey PRIMARY KEY (only_one),
  constraint usage_clock_only_one_check CHECK (only_one)
);

-- What each instance used in an hour. Without foreign keys: it outlives instances and organisations, for 13 months.
create table usage_hours (
  instance_id text not null,
  org_id text not null,
  -- The beginning of the hour.
  hour timestamp with time zone not null,
  -- How long a VM ran.
  running_seconds double precision not null default 0,
  -- CPU time that the VM used.
  cpu_seconds double precision not null default 0,
  -- MiB of memory times seconds that a VM ran.
  memory_mib_seconds double precision not null default 0,
  -- Bytes in the object store times seconds.
  stored_byte_seconds double precision not null default 0,
  -- Bytes that flushes saved.
  flushed_bytes bigint not null default 0,
  -- Bytes through HTTP ports, both ways.
  http_bytes bigint not null default 0,
  constraint usage_hours_pkey PRIMARY KEY (instance_id, hour)
);

-- Scripts for the first boots of instances. A script is kept until the disk that has run it is durable.
create table user_data (
  instance_id text not null,
  -- The script, as the user gave it.
  script text not null,
  -- A boot has received the script.
  given boolean not null default false,
  constraint user_data_pkey PRIMARY KEY (instance_id),
  constraint user_data_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint user_data_script_check CHECK ((octet_length(script) <= 65536))
);

-- Accounts of people.
create table users (
  id text not null,
  -- The e-mail address as it was entered.
  email text not null,
  -- The e-mail address in lower case, for comparison.
  email_key text not null,
  -- The account's owner has proved that mail to the address arrives.
  email_confirmed boolean not null default false,
  name text not null,
  -- argon2id, as a PHC string. Null: the account has no password and logs in at an OpenID provider.
  password_hash text,
  created_at timestamp with time zone not null default now(),
  constraint users_pkey PRIMARY KEY (id),
  constraint users_email_key_key UNIQUE (email_key)
);

-- The boots of instances, a row each. The one with the highest number is the instance's VM.
create table vms (
  id text not null,
  instance_id text not null,
  -- Numbers the boots of the instance.
  boot integer not null,
  -- The disk's epoch that this boot writes with.
  epoch bigint not null,
  -- The host that the boot was placed on.
  host_id text not null,
  -- What the user wants of the VM.
  desired text not null,
  -- What the VM does (src/control-plane/vms/model.ts has the transitions).
  state text not null,
  -- Stop without asking the guest.
  force boolean not null default false,
  -- How many reboots were asked for. The agent reports how many it has done.
  reboots integer not null default 0,
  -- How often the guest was reset, by itself or by a restart. The ingress then ends the connections from before.
  resets integer not null default 0,
  -- Why the VM is in its state. Null: it needs no reason.
  reason_code text,
  -- The same as a sentence for users.
  reason_message text,
  -- Who caused it: the id of a principal or host, or "system".
  reason_actor text,
  -- The guest may have run: only then may the disk have been written.
  guest_ran boolean not null default false,
  -- The head that the VM started from or committed last. Its host's overlay is compared with it.
  generation bigint not null default 0,
  -- The random id of that head. Null: unknown.
  commit_id uuid,
  -- Where sshd answers on the host. Null: it does not answer yet.
  ssh_address text,
  -- Fingerprints of the SSH keys that the guest accepts, reported after all connections with other keys have ended. While one of them is revoked, the revocation is not confirmed. Null: not reported in this boot.
  applied_keys jsonb,
  -- The VM is to continue on another host, by its memory or from its disk. Any other change of the VM ends that.
  move text,
  -- Why it could not move, for the operator. Null: no attempt has failed.
  move_problem text,
  -- When the next attempt to move it may begin. Null: now.
  move_after timestamp with time zone,
  -- The instance is being deleted, and this host has removed everything of it.
  released boolean not null default false,
  -- The last use, by an SSH connection or by an API call.
  active_at timestamp with time zone,
  -- When the guest first answered. Null: not yet.
  started_at timestamp with time zone,
  -- When the boot ended. Null: not yet.
  stopped_at timestamp with time zone,
  -- Since when the durable head has held everything that the guest has written.
  suspended_at timestamp with time zone,
  -- When this boot was started by itself, after the last one had failed. Null: it was not.
  restarted_at timestamp with time zone,
  -- When a failed VM may be started again by itself. Null: not looked at yet. Infinity: never.
  restart_after timestamp with time zone,
  -- The time limit of the present state. Null: it has none.
  deadline_at timestamp with time zone,
  -- The request that last asked for the state, and its span: {request_id, traceparent}. Null: none did.
  trace_context jsonb,
  -- Incremented by each change of the row. It guards updates.
  version bigint not null default 1,
  constraint vms_pkey PRIMARY KEY (id),
  constraint vms_instance_id_boot_key UNIQUE (instance_id, boot),
  constraint vms_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id),
  constraint vms_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint vms_desired_check CHECK ((desired = ANY (ARRAY['running'::text, 'suspended'::text, 'stopped'::text]))),
  constraint vms_move_check CHECK ((move = ANY (ARRAY['suspend'::text, 'stop'::text]))),
  constraint vms_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'restarting'::text, 'suspending'::text, 'suspended'::text, 'stopping'::text, 'stopped'::text, 'failed'::text])))
);

-- Challenges of WebAuthn that wait for their answer.
create table webauthn_challenges (
  -- Base64url, as the browser returns it.
  challenge text not null,
  -- register: the account that adds the factor. login: null, or the account that gave its password.
  user_id text,
  -- Whether the answer adds a factor or logs in.
  purpose text not null,
  expires_at timestamp with time zone not null,
  constraint webauthn_challenges_pkey PRIMARY KEY (challenge),
  constraint webauthn_challenges_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint webauthn_challenges_purpose_check CHECK ((purpose = ANY (ARRAY['register'::text, 'login'::text])))
);

-- Attempts to deliver, and how they were answered.
create table webhook_attempts (
  delivery_id text not null,
  -- Numbers the attempts of a delivery.
  number integer not null,
  -- When the attempt began.
  at timestamp with time zone not null,
  -- Where it was sent.
  url text not null,
  -- The HTTP status of the answer. Null: there was no answer.
  status smallint,
  -- How long it took.
  latency_ms integer not null,
  -- Why it failed. Null: it was delivered.
  error text,
  -- The headers of the answer.
  response_headers jsonb not null,
  -- The beginning of the answer's body.
  response text not null,
  constraint webhook_attempts_pkey PRIMARY KEY (delivery_id, number)
);

-- The events that are or were sent to each webhook. Without foreign keys, here and in webhook_attempts: checking them costs as much as the insert. A task deletes rows whose webhook is gone.
create table webhook_deliveries (
  id text not null,
  webhook_id text not null,
  event_id text not null,
  -- The event's position in the stream.
  position bigint not null,
  instance_id text,
  state text not null default 'pending'::text,
  -- A first attempt or a replay, sent in the order of positions. Otherwise a retry or a redelivery.
  in_order boolean not null default true,
  -- Attempts over its life.
  attempts integer not null default 0,
  -- Attempts since it was last asked for: a redelivery or a replay starts the backoff again.
  tries smallint not null default 0,
  -- When the next attempt is due. Null: it is not pending.
  next_attempt_at timestamp with time zone default now(),
  created_at timestamp with time zone not null default now(),
  constraint webhook_deliveries_pkey PRIMARY KEY (id),
  constraint webhook_deliveries_webhook_id_position_key UNIQUE (webhook_id, "position"),
  constraint webhook_deliveries_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])))
);

-- Which process sends to a webhook, for as long as it renews its lease.
create table webhook_leases (
  webhook_id text not null,
  -- The id of the process.
  owner text not null,
  -- Until when the lease is valid.
  until timestamp with time zone not null,
  constraint webhook_leases_pkey PRIMARY KEY (webhook_id)
);

-- URLs that events are sent to.
create table webhooks (
  id text not null,
  -- Null: the webhook was deleted. A task deletes its deliveries bit by bit, then the row.
  org_id text,
  name text not null,
  -- Where events are sent.
  url text not null,
  -- The types of events that it wants, such as "vm.*".
  events text[] not null,
  status text not null default 'enabled'::text,
  -- Why nothing is sent: a user asked for that, the URL answered 410, or it has failed for too long. Null: it is enabled.
  disabled_reason text,
  disabled_at timestamp with time zone,
  -- The secret that signs deliveries, encrypted.
  secret bytea not null,
  -- The secret before the last rotation, encrypted. It also signs until previous_expires_at.
  previous_secret bytea,
  -- Until when the secret before the last rotation also signs.
  previous_expires_at timestamp with time zone,
  -- Since when every attempt has failed. Null: the last one succeeded.
  failing_since timestamp with time zone,
  -- A notification has said that it is failing.
  failing_notified boolean not null default false,
  -- When the present URL first answered 2xx. Null: never.
  proven_at timestamp with time zone,
  -- Incremented by each change of the row. It is the ETag.
  version bigint not null default 1,
  -- The principal that created it.
  created_by text not null,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  constraint webhooks_pkey PRIMARY KEY (id),
  constraint webhooks_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE SET NULL,
  constraint webhooks_check CHECK (((status = 'disabled'::text) = (disabled_reason IS NOT NULL))),
  constraint webhooks_disabled_reason_check CHECK ((disabled_reason = ANY (ARRAY['requested'::text, 'gone'::text, 'failing'::text]))),
  constraint webhooks_status_check CHECK ((status = ANY (ARRAY['enabled'::text, 'disabled'::text])))
);

CREATE INDEX api_keys_expiry ON public.api_keys USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX api_keys_page ON public.api_keys USING btree (org_id, user_id, id DESC);
CREATE INDEX api_keys_parent ON public.api_keys USING btree (parent_key) WHERE (parent_key IS NOT NULL);
CREATE UNIQUE INDEX api_keys_previous_hash ON public.api_keys USING btree (previous_hash) WHERE (previous_hash IS NOT NULL);
CREATE INDEX api_keys_service_account ON public.api_keys USING btree (service_account_id, id DESC) WHERE (service_account_id IS NOT NULL);
CREATE INDEX audit_log_action ON public.audit_log USING btree (org_id, action, id);
CREATE INDEX audit_log_actor ON public.audit_log USING btree (org_id, actor, id);
CREATE UNIQUE INDEX audit_log_sequence ON public.audit_log USING btree (org_id, seq) WHERE (seq IS NOT NULL);
CREATE INDEX audit_log_target ON public.audit_log USING btree (org_id, target, id);
CREATE INDEX audit_log_unsealed ON public.audit_log USING btree (serial) WHERE (seq IS NULL);
CREATE INDEX console_tickets_instance ON public.console_tickets USING btree (instance_id);
CREATE UNIQUE INDEX data_keys_in_use ON public.data_keys USING btree (instance_id, use) WHERE (use = ANY (ARRAY['disk'::text, 'memory'::text]));
CREATE INDEX denied_destinations_newest ON public.denied_destinations USING btree (instance_id, at DESC);
CREATE INDEX device_logins_confirmed ON public.device_logins USING btree (confirmed_by);
CREATE INDEX device_logins_expiry ON public.device_logins USING btree (expires_at);
CREATE INDEX disks_image_version ON public.disks USING btree (image_version);
CREATE INDEX events_actor ON public.events USING btree (org_id, actor, "position" DESC) WHERE (actor > 'i'::text);
CREATE INDEX events_age ON public.events USING brin (created_at);
CREATE INDEX events_beside_flushes ON public.events USING btree (org_id, type, "position" DESC) WHERE (type <> 'disk.flushed'::text);
CREATE INDEX events_forks ON public.events USING btree ((((data -> 'forked_from'::text) ->> 'instance_id'::text)), "position" DESC) WHERE (type = 'instance.forked'::text);
CREATE INDEX events_instance ON public.events USING btree (instance_id, "position" DESC) WHERE (instance_id IS NOT NULL);
CREATE INDEX events_page ON public.events USING btree (org_id, "position" DESC);
CREATE UNIQUE INDEX events_sequence ON public.events USING btree (instance_id, sequence) WHERE (instance_id IS NOT NULL);
CREATE INDEX events_waiting ON public.events USING btree (serial) WHERE ("position" IS NULL);
CREATE INDEX execs_instance ON public.execs USING btree (instance_id, id);
CREATE INDEX execs_running ON public.execs USING btree (instance_id) WHERE (state = ANY (ARRAY['starting'::text, 'running'::text]));
CREATE INDEX flushes_finished ON public.flushes USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX flushes_instance ON public.flushes USING btree (instance_id);
CREATE UNIQUE INDEX flushes_queued ON public.flushes USING btree (instance_id) WHERE (state = 'queued'::text);
CREATE UNIQUE INDEX flushes_running ON public.flushes USING btree (instance_id) WHERE (state = 'running'::text);
CREATE INDEX free_ssh_ports_order ON public.free_ssh_ports USING btree (quarantined_at NULLS FIRST, port, host);
CREATE INDEX generations_dropped ON public.generations USING btree (instance_id) WHERE (NOT retained);
CREATE INDEX host_org_use_org ON public.host_org_use USING btree (org_id);
CREATE INDEX host_slots_instance ON public.host_slots USING btree (instance_id);
CREATE UNIQUE INDEX hosts_name ON public.hosts USING btree (name) WHERE (removed_at IS NULL);
CREATE INDEX http_cookies_port ON public.http_cookies USING btree (port_id);
CREATE INDEX http_cookies_session ON public.http_cookies USING btree (session_id, port_id, created_at);
CREATE UNIQUE INDEX http_hostnames_active ON public.http_hostnames USING btree (hostname) WHERE (active_at IS NOT NULL);
CREATE INDEX http_hostnames_due ON public.http_hostnames USING btree (next_check_at);
CREATE INDEX http_ports_page ON public.http_ports USING btree (instance_id, id DESC);
CREATE INDEX idempotency_keys_expiry ON public.idempotency_keys USING btree (expires_at);
CREATE INDEX identities_due ON public.identities USING btree (checked_at) WHERE (refresh_token IS NOT NULL);
CREATE INDEX identities_user ON public.identities USING btree (user_id);
CREATE UNIQUE INDEX image_versions_current ON public.image_versions USING btree (image_id) WHERE current;
CREATE INDEX instance_ssh_keys_key ON public.instance_ssh_keys USING btree (ssh_key_id);
CREATE INDEX instances_creator ON public.instances USING btree (created_by);
CREATE INDEX instances_deleting ON public.instances USING btree (id) WHERE deleting;
CREATE INDEX instances_image ON public.instances USING btree (image);
CREATE INDEX instances_page ON public.instances USING btree (org_id, id DESC);
CREATE INDEX instances_restart ON public.instances USING btree (id) WHERE (restart <> 'never'::text);
CREATE INDEX invitations_page ON public.invitations USING btree (org_id, id DESC);
CREATE INDEX mail_tokens_user ON public.mail_tokens USING btree (user_id);
CREATE INDEX mails_due ON public.mails USING btree (due_at);
CREATE INDEX mails_user ON public.mails USING btree (user_id, kind) WHERE (user_id IS NOT NULL);
CREATE INDEX memberships_user ON public.memberships USING btree (user_id, created_at);
CREATE INDEX memory_images_instance ON public.memory_images USING btree (instance_id);
CREATE UNIQUE INDEX mfa_factors_credential ON public.mfa_factors USING btree (((credential ->> 'id'::text))) WHERE (credential IS NOT NULL);
CREATE INDEX mfa_factors_user ON public.mfa_factors USING btree (user_id);
CREATE INDEX notifications_age ON public.notifications USING brin (created_at);
CREATE INDEX notifications_mail ON public.notifications USING btree (mail_after) WHERE (mail_after IS NOT NULL);
CREATE INDEX notifications_repeats ON public.notifications USING btree ((((((recipient || ' '::text) || kind) || ' '::text) || COALESCE(resource_id, ''::text))), id DESC) WHERE ((read_at IS NULL) AND (kind <> 'api_key.created'::text));
CREATE INDEX notifications_stream ON public.notifications USING btree (recipient, "position");
CREATE INDEX notifications_unread ON public.notifications USING btree (recipient, id DESC) WHERE (read_at IS NULL);
CREATE INDEX object_writers_instance ON public.object_writers USING btree (instance_id);
CREATE INDEX open_streams_control_plane ON public.open_streams USING btree (control_plane);
CREATE INDEX organisations_creator ON public.organisations USING btree (created_by);
CREATE UNIQUE INDEX organisations_operator ON public.organisations USING btree (operator) WHERE operator;
CREATE INDEX replaced_refresh_tokens_session ON public.replaced_refresh_tokens USING btree (session_id);
CREATE INDEX segment_holders_instance ON public.segment_holders USING btree (instance_id);
CREATE INDEX segments_unheld ON public.segments USING btree (unheld_at) WHERE (unheld_at IS NOT NULL);
CREATE INDEX service_accounts_page ON public.service_accounts USING btree (org_id, id DESC);
CREATE INDEX session_tokens_expiry ON public.session_tokens USING btree (expires_at);
CREATE INDEX session_tokens_session ON public.session_tokens USING btree (session_id);
CREATE INDEX sessions_end ON public.sessions USING btree (ends_at);
CREATE INDEX sessions_user ON public.sessions USING btree (user_id);
CREATE INDEX ssh_keys_membership ON public.ssh_keys USING btree (org_id, user_id) WHERE (org_id IS NOT NULL);
CREATE INDEX ssh_keys_parent ON public.ssh_keys USING btree (parent_key) WHERE (parent_key IS NOT NULL);
CREATE INDEX sudo_grants_session ON public.sudo_grants USING btree (session_id);
CREATE INDEX sudo_grants_user ON public.sudo_grants USING btree (user_id);
CREATE INDEX usage_hours_old ON public.usage_hours USING btree (hour);
CREATE INDEX usage_hours_page ON public.usage_hours USING btree (org_id, hour DESC, instance_id DESC);
CREATE INDEX vms_deadline ON public.vms USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);
CREATE INDEX vms_failed ON public.vms USING btree (instance_id) WHERE (state = 'failed'::text);
CREATE INDEX vms_host ON public.vms USING btree (host_id) WHERE (state <> 'stopped'::text);
CREATE INDEX vms_moving ON public.vms USING btree (instance_id) WHERE (move IS NOT NULL);
CREATE INDEX vms_stopped_at ON public.vms USING btree (stopped_at);
CREATE INDEX webhook_attempts_at ON public.webhook_attempts USING brin (at);
CREATE INDEX webhook_deliveries_failed ON public.webhook_deliveries USING btree (webhook_id, "position") WHERE (state = 'failed'::text);
CREATE INDEX webhook_deliveries_in_order ON public.webhook_deliveries USING btree (webhook_id, "position") WHERE ((state = 'pending'::text) AND in_order);
CREATE INDEX webhook_deliveries_retries ON public.webhook_deliveries USING btree (webhook_id, next_attempt_at) WHERE ((state = 'pending'::text) AND (NOT in_order));
CREATE INDEX webhooks_page ON public.webhooks USING btree (org_id, id DESC);
