-- expand
-- Who reads objects, and until when no task removes any (src/control-plane/disks/keep-objects.ts).
create table object_readers (
  id uuid primary key,
  until timestamptz not null
);

-- Who writes objects that no row names yet (src/control-plane/disks/segment-store.ts). The sweep leaves objects of the instance alone meanwhile.
create table object_writers (
  id          uuid primary key,
  instance_id text not null references instances on delete cascade,
  since       timestamptz not null default now()
);
create index object_writers_instance on object_writers (instance_id);
