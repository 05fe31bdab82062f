-- Whether a notification repeats an unread one is one comparison, which no other index seems to answer: while the planner
-- knew a few rows it took another, and read all that was unread for each that was raised.
drop index notifications_repeats;
create index notifications_repeats
  on notifications ((recipient || ' ' || kind || ' ' || coalesce(resource_id, '')), id desc) where read_at is null;

-- Audit entries are asked for by their organisation, whose newest come first: one tree does for both.
drop index audit_log_page;
alter table audit_log drop constraint audit_log_pkey, add primary key (org_id, id);

-- Few keys have a secret before this one.
alter table api_keys drop constraint api_keys_previous_hash_key;
create unique index api_keys_previous_hash on api_keys (previous_hash) where previous_hash is not null;
