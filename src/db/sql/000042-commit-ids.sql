-- A generation is identified by a random id. Counters come again with other content once a database was restored to an
-- earlier time, or failed over without its last commits.
alter table disks add column commit_id uuid not null default gen_random_uuid();
alter table disks drop column head_epoch;
alter table generations add column commit_id uuid not null default gen_random_uuid();
update disks d set commit_id = g.commit_id from generations g
  where g.instance_id = d.instance_id and g.generation = d.generation;
-- The head that a VM began from, or has committed last: what its host's overlay is judged by.
alter table vms add column generation bigint not null default 0;
alter table vms add column commit_id uuid;
update vms v set generation = d.generation, commit_id = d.commit_id from disks d
  where d.instance_id = v.instance_id and v.epoch = d.epoch;
