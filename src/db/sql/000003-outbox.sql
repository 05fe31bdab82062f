-- The outbox, read in one order. An event gets its position when it is dispatched, under the lock of this one row, so
-- positions follow commits: who has read up to one never misses an event that was still being written.
create table event_head (
  one      boolean primary key default true check (one),
  position bigint not null default 0
);
insert into event_head default values;

alter table events add column serial bigint generated always as identity;
alter table events add column position bigint unique;
-- Events of an account rather than of an organisation: its user. They go to notifications only.
alter table events add column user_id text;
alter table events alter column org_id drop not null;
alter table events add constraint events_owner check (org_id is not null or user_id is not null);
create index events_waiting on events (serial) where position is null;
create index events_age on events (created_at);
drop index events_page;
create index events_page on events (org_id, position desc);

-- Numbers an instance's events, also after old ones are gone.
alter table instances add column event_sequence bigint not null default 0;
update instances set event_sequence = coalesce((select max(sequence) from events where instance_id = instances.id), 0);
