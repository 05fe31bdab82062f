-- Which generations are kept, and what the tasks that keep disks small need to know.

alter table instances
  -- The newest so many, then the newest of each day for so many days.
  add column keep_last       integer not null default 24,
  add column keep_daily_days integer not null default 14;

alter table disks
  -- It may hold objects that nothing of it needs: a fork holds all that its parent held.
  add column holds_more boolean not null default false,
  -- A process is compacting it, or failed at it; until then others leave it alone. Correctness does not depend on it.
  add column compacting_until timestamptz;

create index generations_dropped on generations (instance_id) where not retained;
