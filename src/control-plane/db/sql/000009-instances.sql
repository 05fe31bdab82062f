create table instances (
  id                   text primary key,
  org_id               text not null references organisations,
  created_by           text not null,
  name                 text not null,
  labels               jsonb not null default '{}',
  image                text not null,
  cpus                 integer not null,
  memory_mib           integer not null,
  disk_gib             integer not null,
  idle_timeout_seconds integer,
  wake_on_connect      boolean not null default false,
  restart              text not null default 'never' check (restart in ('never', 'on_failure')),
  auto_flush_seconds   integer,
  keep_last            integer not null default 24,
  keep_daily_days      integer not null default 14,
  egress_mode          text not null default 'open' check (egress_mode in ('open', 'deny', 'allow')),
  egress_allow         text[] not null default '{}',
  host_labels          jsonb not null default '{}',
  tolerations          text[] not null default '{}',
  ssh_host             text not null default '127.0.0.1',
  ssh_port             integer not null,
  ssh_key_mode         text not null default 'account' check (ssh_key_mode in ('account', 'explicit')),
  host_keys            jsonb,
  forked_from          jsonb,
  deleting             boolean not null default false,
  event_sequence       bigint not null default 0,
  version              bigint not null default 1,
  created_at           timestamptz not null default now(),
  updated_at           timestamptz not null default now(),
  unique (org_id, name),
  constraint instances_ssh_address unique (ssh_host, ssh_port)
);
create index instances_page on instances (org_id, id desc);
create index instances_image on instances (image);
create index instances_restart on instances (id) where restart <> 'never';
create index instances_deleting on instances (id) where deleting;
create index instances_creator on instances (created_by);
comment on table instances is 'What users have: a disk, settings, an SSH address, and at most one running VM.';
comment on column instances.created_by is 'The account or service account that created it.';
comment on column instances.labels is 'The user''s labels, by name.';
comment on column instances.image is 'The image that its disk began with.';
comment on column instances.idle_timeout_seconds is 'A running VM that nobody uses for so long is stopped. Null: never.';
comment on column instances.wake_on_connect is 'A connection to the stopped instance starts its VM.';
comment on column instances.restart is 'Whether a failed VM is started again by itself.';
comment on column instances.auto_flush_seconds is 'The time between automatic flushes. Null: none.';
comment on column instances.keep_last is 'Retention keeps the newest generations, as many as this.';
comment on column instances.keep_daily_days is 'Retention also keeps the newest generation of each of the last days, as many as this.';
comment on column instances.egress_mode is 'The egress policy: what the VM may reach.';
comment on column instances.egress_allow is 'What mode allow permits, in the form of src/shared/egress-policy.ts.';
comment on column instances.host_labels is 'The labels that a host of its VM must have.';
comment on column instances.tolerations is 'The taints of hosts that its VM may nevertheless run on.';
comment on column instances.ssh_host is 'The name of its SSH address (BERTH_SSH_HOST). The control plane''s start renews it.';
comment on column instances.ssh_port is 'The port of its SSH address, fixed for the instance''s life.';
comment on column instances.ssh_key_mode is 'Which SSH keys the guest accepts: account, those of its creator; explicit, those of instance_ssh_keys.';
comment on column instances.host_keys is 'The guest''s SSH host keys, as its host reported them. Null: unknown yet.';
comment on column instances.forked_from is 'What it was forked from, which may be gone: {instance_id, generation, dirty_bytes}. Null: it is no fork.';
comment on column instances.deleting is 'The instance is being deleted: users no longer see it, and its host removes its files.';
comment on column instances.event_sequence is 'The number of its last event. Old events are deleted; their numbers are not used again.';
comment on column instances.version is 'Incremented by each change of the row. It guards updates and is the ETag.';

create table instance_ssh_keys (
  instance_id text not null references instances on delete cascade,
  ssh_key_id  text not null references ssh_keys on delete cascade,
  primary key (instance_id, ssh_key_id)
);
create index instance_ssh_keys_key on instance_ssh_keys (ssh_key_id);
comment on table instance_ssh_keys is 'The SSH keys that an instance with ssh_key_mode explicit accepts.';

create table free_ssh_ports (
  host           text not null default '127.0.0.1',
  port           integer not null,
  quarantined_at timestamptz,
  primary key (host, port)
);
create index free_ssh_ports_order on free_ssh_ports (quarantined_at nulls first, port, host);
comment on table free_ssh_ports is 'SSH addresses without an instance, taken in the order of the index. The control plane adds those of its range when it starts.';
comment on column free_ssh_ports.host is 'The name of the address.';
comment on column free_ssh_ports.port is 'The port of the address.';
comment on column free_ssh_ports.quarantined_at is 'When the last instance that ran at this address was deleted. Null: none ran.';

create table user_data (
  instance_id text primary key references instances on delete cascade,
  script      text not null check (octet_length(script) <= 65536),
  given       boolean not null default false
);
comment on table user_data is 'Scripts for the first boots of instances. A script is kept until the disk that has run it is durable.';
comment on column user_data.script is 'The script, as the user gave it.';
comment on column user_data.given is 'A boot has received the script.';

create table host_slots (
  host_id     text not null references hosts on delete cascade,
  slot        integer not null check (slot between 1 and 65535),
  instance_id text not null references instances on delete cascade,
  primary key (host_id, slot),
  unique (host_id, instance_id)
);
create index host_slots_instance on host_slots (instance_id);
comment on table host_slots is 'The number of each instance on each host. It keeps the number for life, because its files there belong to the slot''s user.';
comment on column host_slots.slot is 'The VM''s user, TAP device and address on the host follow from it.';

create table deleted_instances (
  instance_id text primary key
);
comment on table deleted_instances is 'Instances that were deleted while a host that may have files of them was lost. The host asks when it is back, and then removes the files.';
