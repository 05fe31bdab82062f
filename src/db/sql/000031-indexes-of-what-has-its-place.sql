-- What is written first and gets its place afterwards is in the indexes of places from then on only: so its writing makes
-- an entry fewer in each, and leaves none behind for the vacuum.

alter table events drop constraint events_position_key;
create unique index events_position on events (position) where position is not null;
drop index events_page;
create index events_page on events (org_id, position desc) where position is not null;
drop index events_instance;
create index events_instance on events (instance_id, position desc)
  where instance_id is not null and position is not null;

alter table audit_log drop constraint audit_log_place;
create unique index audit_log_place on audit_log (org_id, seq) where seq is not null;
