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
  -- Fixed for the instance's life.
  ssh_port             integer not null unique,
  -- BERTH_SSH_HOST; the control plane's start renews it.
  ssh_host             text not null default '127.0.0.1',
  host_keys            jsonb,
  ssh_key_mode         text not null default 'account' check (ssh_key_mode in ('account', 'explicit')),
  deleting             boolean not null default false,
  -- Incremented by each change of this row. It guards updates and is the ETag.
  version              bigint not null default 1,
  created_at           timestamptz not null default now(),
  updated_at           timestamptz not null default now(),
  -- Numbers the instance's events. Old events may be deleted; their numbers are not used again.
  event_sequence       bigint not null default 0,
  -- Retention: the newest `keep_last` generations, and the newest one of each of the last `keep_daily_days` days.
  keep_last            integer not null default 24,
  keep_daily_days      integer not null default 14,
  -- What it was forked from, which may be deleted: {instance_id, generation, dirty_bytes}.
  forked_from          jsonb,
  egress_mode          text not null default 'open' check (egress_mode in ('open', 'deny', 'allow')),
  -- Entries in their stored form (src/shared/egress-policy.ts).
  egress_allow         text[] not null default '{}',
  -- Whether a failed VM is started again by itself.
  restart              text not null default 'never' check (restart in ('never', 'on_failure')),
  unique (org_id, name)
);
create index instances_page on instances (org_id, id desc);
create index instances_image on instances (image);
create index instances_restart on instances (id) where restart <> 'never';

create table instance_ssh_keys (
  instance_id text not null references instances on delete cascade,
  ssh_key_id  text not null references ssh_keys on delete cascade,
  primary key (instance_id, ssh_key_id)
);
create index instance_ssh_keys_key on instance_ssh_keys (ssh_key_id);

-- SSH ports without an instance. The control plane adds the ports of its range when it starts.
create table free_ssh_ports (
  port           integer primary key,
  -- When the last instance that ran at this port was deleted. Null: none ran.
  quarantined_at timestamptz
);
-- Ports are taken in this order.
create index free_ssh_ports_order on free_ssh_ports (quarantined_at nulls first, port);

-- A script for an instance's first boot, kept until the disk that has run it is durable.
create table user_data (
  instance_id text primary key references instances on delete cascade,
  script      text not null check (octet_length(script) <= 65536),
  given       boolean not null default false
);

-- What VMs were denied to reach, merged by destination: the last 100 of each instance.
create table denied_destinations (
  instance_id text not null references instances on delete cascade,
  -- The name, or the address where no name is known.
  destination text not null,
  -- 0: a look-up, or a protocol without ports.
  port        integer not null,
  name        text,
  -- Of the last attempt.
  address     text,
  at          timestamptz not null,
  attempts    bigint not null,
  -- The last event about it.
  event_at    timestamptz,
  primary key (instance_id, destination, port)
);
create index denied_destinations_newest on denied_destinations (instance_id, at desc);
