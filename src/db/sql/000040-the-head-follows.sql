-- An event gets its position when it is inserted, and the head follows: up to there every event is settled, committed
-- and handed to the consumers, or never will be. Before, a row was written a second time to give it its position.

-- In the order of the dispatcher's: it holds the head when it writes events. Whoever writes events meanwhile waits, and
-- gets a position by the default.
select position from event_head for update;
lock table events in access exclusive mode;

update events e set position = w.position from (
  select id, row_number() over (order by serial)
    + greatest((select position from event_head), (select max(position) from events)) as position
  from events where position is null
) as w where w.id = e.id;

alter table events alter column position set not null;
-- One at a time, in order: the dispatcher goes by that a lower one was taken before.
alter table events alter column position add generated always as identity (cache 1);
-- Called, even if by nobody yet: a backup keeps the value of a counter that was used.
select setval(pg_get_serial_sequence('events', 'position'), last) from (
  select greatest((select position from event_head), (select max(position) from events)) as last
) as given where last > 0;

-- With its counter and the index of those that waited.
alter table events drop column serial;
-- For the dispatcher, which says it the same way. Of the position as it is, the planner would take it for an organisation's
-- events too where it knows of few organisations, and go through those of all others.
create unique index events_position on events ((position + 0));
drop index events_page;
create index events_page on events (org_id, position desc);
drop index events_instance;
create index events_instance on events (instance_id, position desc) where instance_id is not null;
drop index events_beside_flushes;
create index events_beside_flushes on events (org_id, type, position desc) where type <> 'disk.flushed';
