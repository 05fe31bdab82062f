create table image_versions (
  image_id     text not null,
  version      text not null check (version ~ '^[0-9a-f]{64}$'),
  recipe       text not null,
  index_sha256 text not null check (index_sha256 ~ '^[0-9a-f]{64}$'),
  size_bytes   bigint not null,
  stored_bytes bigint not null,
  current      boolean not null default false,
  removed_at   timestamptz,
  created_at   timestamptz not null default now(),
  primary key (image_id, version)
);
create unique index image_versions_current on image_versions (image_id) where current;
comment on table image_versions is 'Base images in the object store. A row is written after its objects.';
comment on column image_versions.image_id is 'The name of the image, such as debian-12.';
comment on column image_versions.version is 'SHA-256 of the root file system.';
comment on column image_versions.recipe is 'What the image was built from. Two builds of one recipe have different versions and are equally good.';
comment on column image_versions.index_sha256 is 'SHA-256 of the object that lists the image''s other objects with their hashes.';
comment on column image_versions.size_bytes is 'The size of the root file system. No disk may be smaller.';
comment on column image_versions.stored_bytes is 'The size of the image''s objects.';
comment on column image_versions.current is 'New disks use this version.';
comment on column image_versions.removed_at is 'When the version was removed: hosts that still have it delete their copy and do not offer it again. Null: it is in use.';
