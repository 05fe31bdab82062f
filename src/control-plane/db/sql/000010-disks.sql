create table disks (
  instance_id      text primary key references instances on delete cascade,
  size_bytes       bigint not null,
  image_version    text,
  generation       bigint not null default 0,
  commit_id        uuid not null default gen_random_uuid(),
  epoch            bigint not null default 0,
  durable_at       timestamptz,
  stored_bytes     bigint not null default 0,
  dirty_bytes      bigint not null default 0,
  nearly_full      boolean not null default false,
  growth           text check (growth in ('done', 'next_boot')),
  boot_order       integer[] not null default '{}' check (cardinality(boot_order) <= 4096),
  holds_more       boolean not null default false,
  compacting_until timestamptz
);
create index disks_image_version on disks (image_version);
comment on table disks is 'The disk of each instance.';
comment on column disks.image_version is 'The version of the image below the generations, fixed at the first start. Null: not started yet.';
comment on column disks.generation is 'The number of the head, the newest generation. 0: there is none yet.';
comment on column disks.commit_id is 'The random id of the head. A database that was restored or failed over may reach the same number again with other content; the id then differs.';
comment on column disks.epoch is 'Incremented by each placement of a VM. Writes of an older epoch are refused.';
comment on column disks.durable_at is 'When the head was committed. Null: there is none yet.';
comment on column disks.stored_bytes is 'The size of the objects that the disk holds.';
comment on column disks.dirty_bytes is 'What the VM has written since the last flush, as its host last reported.';
comment on column disks.nearly_full is 'Set above 90 % use of the root file system, cleared below 85 %.';
comment on column disks.growth is 'What became of the last increase of the size: the guest''s root file system has grown, or grows at the next boot. Null: it was never increased.';
comment on column disks.boot_order is 'Blocks in the order in which the last boot that loads blocks on demand first read them. The next such boot loads them ahead.';
comment on column disks.holds_more is 'The disk may hold objects that none of its generations needs: a fork holds all that its parent held.';
comment on column disks.compacting_until is 'A process compacts the disk, or has failed to: others leave it alone until then. Correctness does not depend on it.';

create table generations (
  instance_id   text not null references disks on delete cascade,
  generation    bigint not null,
  commit_id     uuid not null default gen_random_uuid(),
  epoch         bigint not null,
  parent        bigint,
  segments      jsonb not null,
  map           jsonb,
  bytes         bigint not null,
  consistency   text not null check (consistency in ('filesystem', 'crash', 'offline')),
  trigger       text not null default 'request'
    check (trigger in ('request', 'auto', 'stop', 'suspend', 'import', 'fork', 'restore')),
  origin        jsonb,
  dirty_bytes   bigint,
  segment_count integer,
  duration_ms   bigint,
  name          text,
  pinned        boolean not null default false,
  retained      boolean not null default true,
  created_at    timestamptz not null default now(),
  primary key (instance_id, generation),
  constraint generations_parent check (parent < generation),
  constraint generations_parent_fkey foreign key (instance_id, parent) references generations (instance_id, generation)
);
create index generations_dropped on generations (instance_id) where not retained;
comment on table generations is 'Durable states of disks.';
comment on column generations.generation is 'The number of the generation in its disk.';
comment on column generations.commit_id is 'A random id, because a restored database may give a number again.';
comment on column generations.epoch is 'The epoch of the VM that wrote it.';
comment on column generations.parent is 'The generation that its changes apply to. Null: they apply to the image.';
comment on column generations.segments is 'The objects with its changes, in order: [{key, size_bytes, entries, …}] (SegmentRef in src/protocol).';
comment on column generations.map is 'An object with the index of the segments: {key, size_bytes, full, key_id}; full: of the whole chain up to here. Null: there is none, and readers read the segments.';
comment on column generations.bytes is 'The size of its new objects.';
comment on column generations.consistency is 'How far the guest was prepared: its file systems were frozen, it was not asked (as after a crash), or its VM had ended.';
comment on column generations.trigger is 'What made it: a request, an automatic flush, the last flush of a stop or suspend, an import, a fork or a restore.';
comment on column generations.origin is 'What the content of a fork or a restore was taken from, which may be gone: {instance_id, generation}. Else null.';
comment on column generations.dirty_bytes is 'What the flush found to save. Null: no flush made it.';
comment on column generations.segment_count is 'How many segments the flush wrote. Null: no flush made it.';
comment on column generations.duration_ms is 'How long the flush took. Null: unknown.';
comment on column generations.name is 'The user''s name for it. Null: none.';
comment on column generations.pinned is 'Retention keeps it.';
comment on column generations.retained is 'False: users no longer see it; it is kept only as a link of the chain that other generations need.';

create table data_keys (
  instance_id      text not null references instances on delete cascade,
  key_id           text not null,
  wrapped          bytea not null,
  use              text not null check (use in ('disk', 'memory', 'reading')),
  used             boolean not null default false,
  until_generation bigint,
  created_at       timestamptz not null default now(),
  primary key (instance_id, key_id)
);
create unique index data_keys_in_use on data_keys (instance_id, use) where use in ('disk', 'memory');
comment on table data_keys is 'The keys that encrypt the objects of instances.';
comment on column data_keys.key_id is 'The key''s id, which objects name. Forks have a key under the same id.';
comment on column data_keys.wrapped is 'The key, encrypted and bound to the instance.';
comment on column data_keys.use is 'disk: it encrypts the disk''s new objects. memory: it encrypts the memory of a suspended VM. reading: it only decrypts existing objects. A fork gets its parent''s disk keys for reading, and the parent a new one to write with; no fork gets a memory key.';
comment on column data_keys.used is 'Objects were written with it, so a fork needs it.';
comment on column data_keys.until_generation is 'Of a replaced key: a flush that was under way may still commit with it, up to this generation.';

create table segments (
  key        text primary key,
  size_bytes bigint not null,
  unheld_at  timestamptz,
  created_at timestamptz not null default now()
);
create index segments_unheld on segments (unheld_at) where unheld_at is not null;
comment on table segments is 'Objects of disks (segments and maps) that a generation names or has named.';
comment on column segments.key is 'The key of the object in the object store.';
comment on column segments.unheld_at is 'When a task first saw it without a holder. It is removed some time later. Null: it has a holder.';

create table segment_holders (
  key         text not null references segments,
  instance_id text not null references instances on delete cascade,
  primary key (key, instance_id)
);
create index segment_holders_instance on segment_holders (instance_id);
comment on table segment_holders is 'The instances whose generations need an object. Forks share objects with their parents.';
comment on column segment_holders.key is 'The key of the object.';

create table object_stores (
  only_one  boolean primary key default true check (only_one),
  id        text not null,
  marked_at timestamptz
);
comment on table object_stores is 'The object store that has this database''s objects. At most one row.';
comment on column object_stores.id is 'The id in the store''s own marker object.';
comment on column object_stores.marked_at is 'When the marker object was written. From then on a store without it is refused as another one.';

create table object_readers (
  id    uuid primary key,
  until timestamptz not null
);
comment on table object_readers is 'Processes that read objects, such as backups (src/control-plane/disks/keep-objects.ts).';
comment on column object_readers.until is 'Until then no task removes any object. The reader renews it.';

create table object_writers (
  id          uuid primary key,
  instance_id text not null references instances on delete cascade,
  since       timestamptz not null default now()
);
create index object_writers_instance on object_writers (instance_id);
comment on table object_writers is 'Processes that write objects which no row names yet (src/control-plane/disks/segment-store.ts). Meanwhile objects of the instance are not removed as orphans.';
comment on column object_writers.since is 'When the writer began. A row older than a day is deleted, and its writer then names nothing.';
