create table event_head (
  only_one boolean primary key default true check (only_one),
  position bigint not null default 0
);
insert into event_head default values;
comment on table event_head is 'The end of the event stream. One row, which the dispatcher locks.';
comment on column event_head.position is 'The highest position that was given so far.';

create table events (
  id          text primary key,
  org_id      text,
  user_id     text,
  instance_id text,
  sequence    bigint,
  type        text not null,
  data        jsonb not null,
  actor       text not null,
  serial      bigint not null generated always as identity,
  position    bigint,
  created_at  timestamptz not null default now(),
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
comment on table events is 'What happened: the outbox of webhooks, notifications and event streams. A row is written in the transaction that it tells of, and deleted after 30 days.';
comment on column events.org_id is 'The organisation that it concerns. Null: it concerns an account, and only notifications tell of it.';
comment on column events.user_id is 'The account that it concerns. Null: it concerns an organisation.';
comment on column events.instance_id is 'The instance that it concerns. Null: none.';
comment on column events.sequence is 'Numbers the events of the instance.';
comment on column events.type is 'What happened, such as "vm.started" (src/control-plane/events/model.ts).';
comment on column events.data is 'Details, by type.';
comment on column events.actor is 'Who caused it: the id of a principal or host, or "system".';
comment on column events.serial is 'The order of the inserts.';
comment on column events.position is 'The event''s position in the stream. The dispatcher gives it, so positions follow commits. Null: not dispatched yet.';
