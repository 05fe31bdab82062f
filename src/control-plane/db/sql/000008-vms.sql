-- One row for each boot.
create table vms (
  id             text primary key,
  instance_id    text not null references instances on delete cascade,
  boot           integer not null,
  epoch          bigint not null,
  host_id        text not null references hosts,
  desired        text not null check (desired in ('running', 'suspended', 'stopped')),
  state          text not null check (state in ('starting', 'running', 'restarting', 'suspending',
                                                'suspended', 'stopping', 'stopped', 'failed')),
  -- Stop without asking the guest.
  force          boolean not null default false,
  -- Reboots asked for so far. The agent reports how many it has done.
  reboots        integer not null default 0,
  reason_code    text,
  reason_message text,
  reason_actor   text,
  -- The instance is being deleted, and this host has removed everything of it.
  released       boolean not null default false,
  -- Where sshd answers on the host, once it does.
  ssh_address    text,
  started_at     timestamptz,
  stopped_at     timestamptz,
  -- The time limit of the present state.
  deadline_at    timestamptz,
  version        bigint not null default 1,
  -- Fingerprints of the keys that the guest accepts, reported after all connections with other keys have ended. While one
  -- of them is revoked, the revocation is not confirmed. Null: not reported in this boot.
  applied_keys   jsonb,
  -- The last use, by an SSH connection or by an API call.
  active_at      timestamptz,
  -- Since when the durable head holds everything that this boot's guest has written.
  suspended_at   timestamptz,
  -- The head that the VM started from or committed last. Its host's overlay is compared with it.
  generation     bigint not null default 0,
  commit_id      uuid,
  -- How often the guest was reset, by itself or by a restart. The ingress then ends the connections from before.
  resets         integer not null default 0,
  -- Its guest may have run: only then the disk may have been written.
  guest_ran      boolean not null default false,
  -- When this boot was started by itself, after the last one had failed.
  restarted_at   timestamptz,
  unique (instance_id, boot)
);
create index vms_host on vms (host_id) where state <> 'stopped';
create index vms_deadline on vms (deadline_at) where deadline_at is not null;

-- The memory of a suspended VM, in object storage. It belongs to the suspended VM, then to the boot that resumes it.
-- It is deleted once that VM is neither suspended nor starting, or once it belongs to none.
create table memory_images (
  -- The prefix of all its objects.
  key         text primary key,
  instance_id text not null references instances on delete cascade,
  vm_id       text unique,
  ref         jsonb not null,
  created_at  timestamptz not null default now()
);
create index memory_images_instance on memory_images (instance_id);

-- A ticket opens a VM's serial console once, with the credential that asked for it. The credential is checked for as
-- long as the console is open.
create table console_tickets (
  ticket_hash     bytea primary key,
  instance_id     text not null references instances on delete cascade,
  org_id          text not null references organisations on delete cascade,
  credential_kind text not null check (credential_kind in ('session', 'key')),
  credential_id   text not null,
  expires_at      timestamptz not null,
  -- The API key's token at that time: a rotation keeps the key's id, and ends consoles of the old token.
  secret_hash     bytea,
  check ((credential_kind = 'key') = (secret_hash is not null))
);

-- One row: since when the ingress has counted connections without a gap, and when it last reported.
create table ingress_watch (
  one         boolean primary key default true check (one),
  since       timestamptz not null,
  reported_at timestamptz not null
);

-- What an instance's VMs used: by the minute for a day, by the hour for 30 days. A period without a running VM has no row.
-- Without a foreign key: its check would wait for changes of the instance, and hold them up. Deleted with the instance.
create table metric_samples (
  instance_id text not null,
  -- The beginning of the period.
  at          timestamptz not null,
  seconds     integer not null check (seconds in (60, 3600)),
  -- The measured minutes of the period.
  minutes     smallint not null,
  -- Of each of METRICS (protocol/host-types.ts), in its order; an element is null where none was measured.
  means       real[] not null,
  mins        real[] not null,
  maxs        real[] not null,
  primary key (instance_id, at)
);
