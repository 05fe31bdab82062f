-- The highest position given so far. The dispatcher locks this row.
create table event_head (
  one      boolean primary key default true check (one),
  position bigint not null default 0
);
insert into event_head default values;

create table events (
  id          text primary key,
  -- Null: an event of an account, for notifications only.
  org_id      text,
  instance_id text,
  -- Numbers the events of one instance.
  sequence    bigint,
  type        text not null,
  data        jsonb not null,
  actor       text not null,
  created_at  timestamptz not null default now(),
  -- The order of the inserts.
  serial      bigint not null generated always as identity,
  -- Given by the dispatcher, so positions follow commits.
  position    bigint,
  user_id     text,
  constraint events_owner check (org_id is not null or user_id is not null)
);
create index events_age on events using brin (created_at);
create index events_page on events (org_id, position desc);
create index events_instance on events (instance_id, position desc) where instance_id is not null;
-- The forks of an instance, which are events of other instances.
create index events_forks on events ((data -> 'forked_from' ->> 'instance_id'), position desc) where type = 'instance.forked';
create index events_beside_flushes on events (org_id, type, position desc) where type <> 'disk.flushed';
-- Of people and service accounts: most events are of hosts (`host_…`).
create index events_actor on events (org_id, actor, position desc) where actor > 'i';
create index events_waiting on events (serial) where position is null;
create unique index events_sequence on events (instance_id, sequence) where instance_id is not null;
