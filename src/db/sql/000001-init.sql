-- Accounts -------------------------------------------------------------------------------------------

create table users (
  id            text primary key,
  email         text not null,
  -- The address as compared: lower case.
  email_key     text not null unique,
  name          text not null,
  -- argon2id, PHC string.
  password_hash text not null,
  created_at    timestamptz not null default now()
);

create table organisations (
  id            text primary key,
  name          text not null,
  billing_email text not null,
  created_at    timestamptz not null default now()
);

create table memberships (
  org_id     text not null references organisations on delete cascade,
  user_id    text not null references users on delete cascade,
  role       text not null check (role in ('owner', 'admin', 'member', 'billing')),
  created_at timestamptz not null default now(),
  primary key (org_id, user_id)
);
create index memberships_user on memberships (user_id, created_at);

create table sessions (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  -- SHA-256 of the bearer token.
  token_hash   bytea not null unique,
  ip           text not null,
  user_agent   text not null,
  created_at   timestamptz not null default now(),
  last_seen_at timestamptz not null default now(),
  expires_at   timestamptz not null
);
create index sessions_user on sessions (user_id);

create table api_keys (
  id           text primary key,
  org_id       text not null references organisations on delete cascade,
  user_id      text not null references users on delete cascade,
  name         text not null,
  scope        text not null,
  -- SHA-256 of the bearer token; beside it what may be shown again.
  token_hash   bytea not null unique,
  prefix       text not null,
  last4        text not null,
  created_at   timestamptz not null default now(),
  last_used_at timestamptz,
  expires_at   timestamptz,
  foreign key (org_id, user_id) references memberships (org_id, user_id) on delete cascade
);
create index api_keys_page on api_keys (org_id, user_id, id desc);

create table ssh_keys (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  name         text not null,
  type         text not null,
  fingerprint  text not null,
  public_key   text not null,
  created_at   timestamptz not null default now(),
  last_used_at timestamptz,
  unique (user_id, fingerprint)
);

-- Hosts ----------------------------------------------------------------------------------------------

create table hosts (
  id           text primary key,
  name         text not null unique,
  token_hash   bytea not null unique,
  created_at   timestamptz not null default now(),
  last_seen_at timestamptz,
  -- The agent's latest word about itself (agent-api HostFacts).
  facts        jsonb
);

-- Instances ------------------------------------------------------------------------------------------

create table instances (
  id                   text primary key,
  org_id               text not null references organisations,
  created_by           text not null,
  name                 text not null,
  image                text not null,
  cpus                 integer not null,
  memory_mib           integer not null,
  disk_gib             integer not null,
  labels               jsonb not null default '{}',
  idle_timeout_seconds integer,
  wake_on_connect      boolean not null default false,
  auto_flush_seconds   integer,
  -- Stable for the instance's life.
  ssh_port             integer not null unique,
  host_keys            jsonb,
  ssh_key_mode         text not null default 'account' check (ssh_key_mode in ('account', 'explicit')),
  deleting             boolean not null default false,
  -- Counts changes of this row; guards updates and makes the ETag.
  version              bigint not null default 1,
  created_at           timestamptz not null default now(),
  updated_at           timestamptz not null default now(),
  unique (org_id, name)
);
create index instances_page on instances (org_id, id desc);

create table instance_ssh_keys (
  instance_id text not null references instances on delete cascade,
  ssh_key_id  text not null references ssh_keys on delete cascade,
  primary key (instance_id, ssh_key_id)
);
create index instance_ssh_keys_key on instance_ssh_keys (ssh_key_id);

-- Ports of deleted instances, not given out again before `until`.
create table resting_ports (
  port  integer primary key,
  until timestamptz not null
);

-- Disks ----------------------------------------------------------------------------------------------

create table disks (
  instance_id   text primary key references instances on delete cascade,
  size_bytes    bigint not null,
  -- Which base image the generations are deltas of; fixed at the first start.
  image_version text,
  generation    bigint not null default 0,
  -- The placement that committed the head; the newest placement of all.
  head_epoch    bigint not null default 0,
  epoch         bigint not null default 0,
  durable_at    timestamptz,
  stored_bytes  bigint not null default 0,
  dirty_bytes   bigint not null default 0
);

create table generations (
  instance_id  text not null references disks on delete cascade,
  generation   bigint not null,
  epoch        bigint not null,
  created_at   timestamptz not null default now(),
  bytes        bigint not null,
  consistency  text not null check (consistency in ('filesystem', 'crash', 'offline')),
  -- [{key, size_bytes}] in order.
  segments     jsonb not null,
  primary key (instance_id, generation)
);

-- VMs: one row a boot --------------------------------------------------------------------------------

create table vms (
  id             text primary key,
  instance_id    text not null references instances on delete cascade,
  boot           integer not null,
  epoch          bigint not null,
  host_id        text not null references hosts,
  desired        text not null check (desired in ('running', 'stopped')),
  state          text not null check (state in ('starting', 'running', 'restarting', 'suspending',
                                                'suspended', 'stopping', 'stopped', 'failed')),
  -- A stop that skips the guest's part.
  force          boolean not null default false,
  -- Soft reboots asked for; the agent reports the number that it has done.
  reboots        integer not null default 0,
  reason_code    text,
  reason_message text,
  reason_actor   text,
  -- Set when the instance is being deleted and this host has removed all that it held of it.
  released       boolean not null default false,
  -- Where on its host sshd answers, once it does.
  ssh_address    text,
  started_at     timestamptz,
  stopped_at     timestamptz,
  -- When the present state must have been left.
  deadline_at    timestamptz,
  version        bigint not null default 1,
  unique (instance_id, boot)
);
create index vms_host on vms (host_id) where state <> 'stopped';
create index vms_deadline on vms (deadline_at) where deadline_at is not null;

-- Flushes that callers wait for: at most one queued and one running an instance ------------------------

create table flushes (
  id           text primary key,
  instance_id  text not null references instances on delete cascade,
  vm_id        text not null,
  state        text not null check (state in ('queued', 'running', 'done', 'failed')),
  requested_at timestamptz not null default now(),
  finished_at  timestamptz,
  -- The receipt, or {code, message}.
  receipt      jsonb,
  error        jsonb
);
create unique index flushes_queued on flushes (instance_id) where state = 'queued';
create unique index flushes_running on flushes (instance_id) where state = 'running';
create index flushes_finished on flushes (finished_at) where finished_at is not null;

-- The outbox -----------------------------------------------------------------------------------------

create table events (
  id          text primary key,
  org_id      text not null,
  instance_id text,
  -- Counts the events of one instance.
  sequence    bigint,
  type        text not null,
  data        jsonb not null,
  actor       text not null,
  created_at  timestamptz not null default now(),
  unique (instance_id, sequence)
);
create index events_page on events (org_id, id desc);
