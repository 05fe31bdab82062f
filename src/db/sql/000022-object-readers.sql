-- expand
-- Who reads objects, and until when no task removes any (src/disks/keep-objects.ts).
create table object_readers (
  id uuid primary key,
  until timestamptz not null
);
