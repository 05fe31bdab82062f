-- Whether a notification repeats one that is still unread is asked for each that is raised: without looking through all
-- that the reader has not read.
create index notifications_repeats on notifications (recipient, kind, (coalesce(resource_id, '')), id desc)
  where read_at is null;
