-- Disks as chains: data keys, which objects who holds, generations that follow another than the one before.

-- The keys that disks are encrypted with, each wrapped for the instance that has it (src/disks/data-keys.ts).
create table data_keys (
  instance_id text not null references instances on delete cascade,
  key_id      text not null,
  wrapped     bytea not null,
  -- What the instance itself writes with; the others are of segments that it shares.
  own         boolean not null,
  created_at  timestamptz not null default now(),
  primary key (instance_id, key_id)
);
create unique index data_keys_own on data_keys (instance_id) where own;

-- Segments in the object store that a generation names or named. Without a holder they are removed after a while.
create table segments (
  key        text primary key,
  size_bytes bigint not null,
  entries    integer not null,
  created_at timestamptz not null default now(),
  -- When it was first seen without a holder.
  unheld_at  timestamptz
);
create index segments_unheld on segments (unheld_at) where unheld_at is not null;

create table segment_holders (
  key         text not null references segments,
  instance_id text not null references instances on delete cascade,
  primary key (key, instance_id)
);
create index segment_holders_instance on segment_holders (instance_id);

insert into segments (key, size_bytes, entries)
select s ->> 'key', max((s ->> 'size_bytes')::bigint), max(coalesce((s ->> 'entries')::integer, 0))
from generations, jsonb_array_elements(segments) s
group by 1;
insert into segment_holders (key, instance_id)
select distinct s ->> 'key', instance_id from generations, jsonb_array_elements(segments) s;

alter table generations
  -- The generation that this one's changes apply to; null: they apply to the image.
  add column parent bigint,
  -- {key, size_bytes, full, key_id}: an object that says what the segments said; full: of all the chain up to here.
  add column map jsonb,
  add column name text,
  add column pinned boolean not null default false,
  -- False: only a link of the chain that others need.
  add column retained boolean not null default true;
update generations set parent = generation - 1 where generation > 1;
alter table generations
  add constraint generations_parent check (parent < generation),
  add constraint generations_parent_fkey foreign key (instance_id, parent) references generations (instance_id, generation);
