-- A webhook without an organisation was deleted: the sweep deletes its deliveries bit by bit, then the row.
create table webhooks (
  id                  text primary key,
  org_id              text references organisations on delete set null,
  name                text not null,
  url                 text not null,
  events              text[] not null,
  status              text not null default 'enabled' check (status in ('enabled', 'disabled')),
  disabled_reason     text check (disabled_reason in ('requested', 'gone', 'failing')),
  disabled_at         timestamptz,
  -- Encrypted. The secret before the last rotation also signs until `previous_expires_at`.
  secret              bytea not null,
  previous_secret     bytea,
  previous_expires_at timestamptz,
  -- Since when every attempt has failed.
  failing_since       timestamptz,
  failing_told        boolean not null default false,
  version             bigint not null default 1,
  created_by          text not null,
  created_at          timestamptz not null default now(),
  updated_at          timestamptz not null default now(),
  -- When the present URL first answered 2xx. Null: never.
  proven_at           timestamptz,
  check ((status = 'disabled') = (disabled_reason is not null))
);
create index webhooks_page on webhooks (org_id, id desc);

-- One row for each event and webhook.
-- No foreign keys here and in webhook_attempts: checking them costs as much as the insert. The sweep removes rows whose
-- webhook is gone.
create table webhook_deliveries (
  id              text primary key,
  webhook_id      text not null,
  event_id        text not null,
  -- Of the event.
  position        bigint not null,
  instance_id     text,
  state           text not null default 'pending' check (state in ('pending', 'delivered', 'failed')),
  -- A first attempt or a replay: sent in the order of positions. Otherwise a retry or a redelivery.
  in_order        boolean not null default true,
  -- Over its life, and since it was last asked for.
  attempts        integer not null default 0,
  tries           smallint not null default 0,
  -- Null unless it is pending.
  next_attempt_at timestamptz default now(),
  created_at      timestamptz not null default now(),
  unique (webhook_id, position)
);
create index webhook_deliveries_in_order on webhook_deliveries (webhook_id, position)
  where state = 'pending' and in_order;
create index webhook_deliveries_retries on webhook_deliveries (webhook_id, next_attempt_at)
  where state = 'pending' and not in_order;
create index webhook_deliveries_failed on webhook_deliveries (webhook_id, position) where state = 'failed';

create table webhook_attempts (
  delivery_id      text not null,
  number           integer not null,
  at               timestamptz not null,
  url              text not null,
  -- Null: there was no answer.
  status           smallint,
  latency_ms       integer not null,
  error            text,
  -- Of the answer.
  response_headers jsonb not null,
  response         text not null,
  primary key (delivery_id, number)
);
create index webhook_attempts_at on webhook_attempts using brin (at);

-- The process that sends to a webhook, for as long as it renews its lease.
create table webhook_leases (
  webhook_id text primary key,
  owner      text not null,
  until      timestamptz not null,
  -- Another process has seen new deliveries since the owner last looked.
  woken      boolean not null default false
);
