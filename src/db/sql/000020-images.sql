-- Base images in the object store, by the hash of their root file systems (docs/adr/0008, 0026). Objects first, then the
-- row: what is here can be fetched by any host.
create table image_versions (
  image_id     text not null,
  version      text not null check (version ~ '^[0-9a-f]{64}$'),
  -- What it was made by: two builds of one recipe are told apart by version, and are as good as each other.
  recipe       text not null,
  -- Of the object that lists its pieces with their hashes.
  index_sha256 text not null check (index_sha256 ~ '^[0-9a-f]{64}$'),
  -- Of the root file system: no disk may be smaller.
  size_bytes   bigint not null,
  stored_bytes bigint not null,
  -- What new disks are made over.
  current      boolean not null default false,
  -- Nobody needs it any more; hosts that still have it remove it, and do not offer it again.
  removed_at   timestamptz,
  created_at   timestamptz not null default now(),
  primary key (image_id, version)
);
create unique index image_versions_current on image_versions (image_id) where current;

-- Who needs a version.
create index disks_image_version on disks (image_version);
create index instances_image on instances (image);
