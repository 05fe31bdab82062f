create table disks (
  instance_id      text primary key references instances on delete cascade,
  size_bytes       bigint not null,
  -- The base image below the generations. Fixed at the first start.
  image_version    text,
  -- The head: the newest generation, and its random id. A database that was restored or failed over may reach the same
  -- number again with other content; the id then differs.
  generation       bigint not null default 0,
  -- Incremented by each placement of a VM.
  epoch            bigint not null default 0,
  durable_at       timestamptz,
  stored_bytes     bigint not null default 0,
  dirty_bytes      bigint not null default 0,
  -- Set above 90 % use of the root file system, cleared below 85 %.
  nearly_full      boolean not null default false,
  -- Blocks in the order in which the last lazy boot first read them. The next lazy boot prefetches them.
  boot_order       integer[] not null default '{}' check (cardinality(boot_order) <= 4096),
  -- It may hold objects that none of its generations needs: a fork holds all that its parent held.
  holds_more       boolean not null default false,
  -- A process compacts it, or failed to: others leave it alone until then. Correctness does not depend on it.
  compacting_until timestamptz,
  commit_id        uuid not null default gen_random_uuid()
);
create index disks_image_version on disks (image_version);

create table generations (
  instance_id text not null references disks on delete cascade,
  generation  bigint not null,
  epoch       bigint not null,
  created_at  timestamptz not null default now(),
  bytes       bigint not null,
  consistency text not null check (consistency in ('filesystem', 'crash', 'offline')),
  -- What made it.
  trigger     text not null default 'request'
    check (trigger in ('request', 'auto', 'stop', 'suspend', 'fork', 'restore')),
  -- Of a fork or a restore, {instance_id, generation}: what its content was taken from, which may be deleted.
  origin      jsonb,
  -- What the flush's receipt says; null without a flush, the duration also for a flush that nobody requested.
  dirty_bytes bigint,
  segment_count integer,
  duration_ms bigint,
  -- [{key, size_bytes}] in order.
  segments    jsonb not null,
  -- The generation that this one's changes apply to. Null: they apply to the image.
  parent      bigint,
  -- {key, size_bytes, full, key_id}: an object with the index of the segments. full: of the whole chain up to here.
  map         jsonb,
  name        text,
  pinned      boolean not null default false,
  -- False: kept only as a link of the chain that other generations need.
  retained    boolean not null default true,
  commit_id   uuid not null default gen_random_uuid(),
  primary key (instance_id, generation),
  constraint generations_parent check (parent < generation),
  constraint generations_parent_fkey foreign key (instance_id, parent) references generations (instance_id, generation)
);
create index generations_dropped on generations (instance_id) where not retained;

-- The keys that disks are encrypted with, each wrapped for the instance that has it (src/control-plane/disks/data-keys.ts).
create table data_keys (
  instance_id      text not null references instances on delete cascade,
  key_id           text not null,
  wrapped          bytea not null,
  created_at       timestamptz not null default now(),
  -- Writes the disk's new objects, writes the memory of a suspended VM, or only reads existing objects. A fork copies
  -- its parent's disk keys, and the parent then gets a new one to write with. No fork gets a memory key.
  use              text not null check (use in ('disk', 'memory', 'reading')),
  -- Objects were written with it, so a fork needs it.
  used             boolean not null default false,
  -- A flush that was running when the key was replaced may still commit, up to this generation.
  until_generation bigint,
  primary key (instance_id, key_id)
);
create unique index data_keys_in_use on data_keys (instance_id, use) where use in ('disk', 'memory');

-- Segments in the object store that a generation names or has named.
create table segments (
  key        text primary key,
  size_bytes bigint not null,
  entries    integer not null,
  created_at timestamptz not null default now(),
  -- When a task first saw it without a holder. It is deleted after the removal delay.
  unheld_at  timestamptz
);
create index segments_unheld on segments (unheld_at) where unheld_at is not null;

create table segment_holders (
  key         text not null references segments,
  instance_id text not null references instances on delete cascade,
  primary key (key, instance_id)
);
create index segment_holders_instance on segment_holders (instance_id);

-- Flushes that callers wait for: at most one queued and one running for each instance.
create table flushes (
  id           text primary key,
  instance_id  text not null references instances on delete cascade,
  vm_id        text not null,
  -- The first of those who wait for it.
  requested_by text not null,
  state        text not null check (state in ('queued', 'running', 'done', 'failed')),
  requested_at timestamptz not null default now(),
  finished_at  timestamptz,
  receipt      jsonb,
  -- {code, message}
  error        jsonb
);
create unique index flushes_queued on flushes (instance_id) where state = 'queued';
create unique index flushes_running on flushes (instance_id) where state = 'running';
create index flushes_finished on flushes (finished_at) where finished_at is not null;

-- Deleted while a host that may have files of it was lost. The host asks when it is back, and removes them only on this word.
create table deleted_instances (
  instance_id text primary key,
  deleted_at  timestamptz not null default now()
);
