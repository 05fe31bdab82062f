create table hosts (
  id           text primary key,
  name         text not null,
  token_hash   bytea not null unique,
  created_at   timestamptz not null default now(),
  last_seen_at timestamptz,
  -- The agent's latest report about itself (agent-api HostFacts).
  facts        jsonb,
  -- Incremented by each renewal of the lease. It shows whether a host lives without comparing clocks.
  beat         bigint not null default 0,
  -- The length of the host's lease. When it expires, the host pauses its VMs. Null: no lease, and never lost.
  lease_ms     integer check (lease_ms > 0),
  -- Set while the lease is expired without a renewal.
  lost_at      timestamptz,
  -- On another machine: its VMs are reached through the agent's own connection; addresses it reports are not dialled.
  remote       boolean not null default false,
  -- Gets no new VM.
  draining     boolean not null default false,
  -- The token is revoked. The row stays for the VMs that ran there; another host of the name has a row of its own.
  removed_at   timestamptz,
  -- The capacity that the operator allows on a remote host.
  cpus         integer check (cpus > 0),
  memory_mib   integer check (memory_mib > 0),
  -- The version of the agent protocol that the host last spoke.
  protocol     integer
);
create unique index hosts_name on hosts (name) where removed_at is null;

-- Base images in the object store, by the hash of their root file systems. A row is written after its objects.
create table image_versions (
  image_id     text not null,
  version      text not null check (version ~ '^[0-9a-f]{64}$'),
  -- The recipe it was built from. Two builds of one recipe have different versions and are equally good.
  recipe       text not null,
  -- Of the object that lists the pieces with their hashes.
  index_sha256 text not null check (index_sha256 ~ '^[0-9a-f]{64}$'),
  -- Of the root file system. No disk may be smaller.
  size_bytes   bigint not null,
  stored_bytes bigint not null,
  -- New disks use it.
  current      boolean not null default false,
  -- Nothing needs it. Hosts that still have it delete their copy and do not offer it again.
  removed_at   timestamptz,
  created_at   timestamptz not null default now(),
  primary key (image_id, version)
);
create unique index image_versions_current on image_versions (image_id) where current;

-- The object store that this database's objects are in, identified by a mark object. At most one row.
create table object_stores (
  only_one  boolean primary key default true check (only_one),
  id        text not null,
  -- From then on, a store without the mark is refused as another one.
  marked_at timestamptz
);
