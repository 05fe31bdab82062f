-- What was not tried yet has no row of its own: a batch of events is one row for each webhook that wants them. A delivery
-- gets its row with its first outcome. Rows that are pending now stay, and are sent as ever.
create table webhook_batches (
  webhook_id text not null,
  -- Of its last event; the batches of a webhook follow each other.
  position   bigint not null,
  -- Of its events, ascending, and the ids of their deliveries.
  positions  bigint[] not null,
  ids        text[] not null,
  size       integer not null,
  created_at timestamptz not null default now(),
  primary key (webhook_id, position)
);
