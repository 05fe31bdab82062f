-- A fork takes its parent's keys, and the parent writes with another from then on. Memory has a key that no fork takes.
alter table data_keys
  -- What it is for: the disk's new objects, the memory of a suspended VM, or only the reading of what there is.
  add column use text not null default 'reading' check (use in ('disk', 'memory', 'reading')),
  -- Objects were written with it, so a fork needs it.
  add column used boolean not null default true,
  -- A flush that was under way as it was replaced may still be committed, up to this generation.
  add column until_generation bigint;
update data_keys set use = 'disk' where own;
drop index data_keys_own;
alter table data_keys drop column own;
alter table data_keys alter column use drop default, alter column used set default false;
create unique index data_keys_in_use on data_keys (instance_id, use) where use in ('disk', 'memory');
