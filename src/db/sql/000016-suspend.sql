-- What a suspended VM had in its memory, in object storage. It belongs to one VM: the one that was suspended, then, from
-- the transaction on that places its resume, that boot alone. Once that VM is neither suspended nor starting, or it belongs
-- to none, it is spent.
create table memory_images (
  -- All its objects lie below it.
  key         text primary key,
  instance_id text not null references instances (id) on delete cascade,
  vm_id       text unique,
  ref         jsonb not null,
  created_at  timestamptz not null default now()
);
create index memory_images_instance on memory_images (instance_id);

-- Since when the durable head is all that this boot's guest has written.
alter table vms add column suspended_at timestamptz;

alter table vms drop constraint vms_desired_check;
alter table vms add constraint vms_desired_check check (desired in ('running', 'suspended', 'stopped'));
