create table webhooks (
  id                  text primary key,
  org_id              text references organisations on delete set null,
  name                text not null,
  url                 text not null,
  events              text[] not null,
  status              text not null default 'enabled' check (status in ('enabled', 'disabled')),
  disabled_reason     text check (disabled_reason in ('requested', 'gone', 'failing')),
  disabled_at         timestamptz,
  secret              bytea not null,
  previous_secret     bytea,
  previous_expires_at timestamptz,
  failing_since       timestamptz,
  failing_notified    boolean not null default false,
  proven_at           timestamptz,
  version             bigint not null default 1,
  created_by          text not null,
  created_at          timestamptz not null default now(),
  updated_at          timestamptz not null default now(),
  check ((status = 'disabled') = (disabled_reason is not null))
);
create index webhooks_page on webhooks (org_id, id desc);
comment on table webhooks is 'URLs that events are sent to.';
comment on column webhooks.org_id is 'Null: the webhook was deleted. A task deletes its deliveries bit by bit, then the row.';
comment on column webhooks.url is 'Where events are sent.';
comment on column webhooks.events is 'The types of events that it wants, such as "vm.*".';
comment on column webhooks.disabled_reason is 'Why nothing is sent: a user asked for that, the URL answered 410, or it has failed for too long. Null: it is enabled.';
comment on column webhooks.secret is 'The secret that signs deliveries, encrypted.';
comment on column webhooks.previous_secret is 'The secret before the last rotation, encrypted. It also signs until previous_expires_at.';
comment on column webhooks.previous_expires_at is 'Until when the secret before the last rotation also signs.';
comment on column webhooks.failing_since is 'Since when every attempt has failed. Null: the last one succeeded.';
comment on column webhooks.failing_notified is 'A notification has said that it is failing.';
comment on column webhooks.proven_at is 'When the present URL first answered 2xx. Null: never.';
comment on column webhooks.version is 'Incremented by each change of the row. It is the ETag.';
comment on column webhooks.created_by is 'The principal that created it.';

create table webhook_deliveries (
  id              text primary key,
  webhook_id      text not null,
  event_id        text not null,
  position        bigint not null,
  instance_id     text,
  state           text not null default 'pending' check (state in ('pending', 'delivered', 'failed')),
  in_order        boolean not null default true,
  attempts        integer not null default 0,
  tries           smallint not null default 0,
  next_attempt_at timestamptz default now(),
  created_at      timestamptz not null default now(),
  unique (webhook_id, position)
);
create index webhook_deliveries_in_order on webhook_deliveries (webhook_id, position)
  where state = 'pending' and in_order;
create index webhook_deliveries_retries on webhook_deliveries (webhook_id, next_attempt_at)
  where state = 'pending' and not in_order;
create index webhook_deliveries_failed on webhook_deliveries (webhook_id, position) where state = 'failed';
comment on table webhook_deliveries is 'The events that are or were sent to each webhook. Without foreign keys, here and in webhook_attempts: checking them costs as much as the insert. A task deletes rows whose webhook is gone.';
comment on column webhook_deliveries.position is 'The event''s position in the stream.';
comment on column webhook_deliveries.in_order is 'A first attempt or a replay, sent in the order of positions. Otherwise a retry or a redelivery.';
comment on column webhook_deliveries.attempts is 'Attempts over its life.';
comment on column webhook_deliveries.tries is 'Attempts since it was last asked for: a redelivery or a replay starts the backoff again.';
comment on column webhook_deliveries.next_attempt_at is 'When the next attempt is due. Null: it is not pending.';

create table webhook_attempts (
  delivery_id      text not null,
  number           integer not null,
  at               timestamptz not null,
  url              text not null,
  status           smallint,
  latency_ms       integer not null,
  error            text,
  response_headers jsonb not null,
  response         text not null,
  primary key (delivery_id, number)
);
create index webhook_attempts_at on webhook_attempts using brin (at);
comment on table webhook_attempts is 'Attempts to deliver, and how they were answered.';
comment on column webhook_attempts.number is 'Numbers the attempts of a delivery.';
comment on column webhook_attempts.at is 'When the attempt began.';
comment on column webhook_attempts.url is 'Where it was sent.';
comment on column webhook_attempts.status is 'The HTTP status of the answer. Null: there was no answer.';
comment on column webhook_attempts.latency_ms is 'How long it took.';
comment on column webhook_attempts.error is 'Why it failed. Null: it was delivered.';
comment on column webhook_attempts.response_headers is 'The headers of the answer.';
comment on column webhook_attempts.response is 'The beginning of the answer''s body.';

create table webhook_leases (
  webhook_id text primary key,
  owner      text not null,
  until      timestamptz not null
);
comment on table webhook_leases is 'Which process sends to a webhook, for as long as it renews its lease.';
comment on column webhook_leases.owner is 'The id of the process.';
comment on column webhook_leases.until is 'Until when the lease is valid.';
