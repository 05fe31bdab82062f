-- expand
-- Counts of all control planes, which nobody misses after a crash of the database: no commit waits for them.
alter table request_counts set unlogged;

-- How many event streams, notification streams and consoles an organisation has open at a control plane, which says every 2 s that
-- it has them. Those of one that has ended count for 6 s.
create unlogged table open_streams (
  org_id        text not null,
  -- New at each start of the process.
  control_plane text not null,
  count         integer not null,
  seen_at       timestamptz not null default now(),
  primary key (org_id, control_plane)
);
create index open_streams_control_plane on open_streams (control_plane);
