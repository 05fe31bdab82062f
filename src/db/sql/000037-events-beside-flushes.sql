-- Nearly all events are flushes. Who asked for others, by type or resource or with a scope that shows no flushes, had all
-- flushes of thirty days read through for it.
create index events_beside_flushes on events (org_id, type, position desc)
  where position is not null and type <> 'disk.flushed';
