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
  -- It answers so slowly that it is served in the slow lane.
  slow                boolean not null default false,
  version             bigint not null default 1,
  created_by          text not null,
  created_at          timestamptz not null default now(),
  updated_at          timestamptz not null default now(),
  -- When the present URL first answered 2xx. Null: never.
  proven_at           timestamptz,
  check ((status = 'disabled') = (disabled_reason is not null))
);
create index webhooks_page on webhooks (org_id, id desc);

-- One event for one webhook, however often it is sent. No foreign keys: checking them would cost as much as the insert.
-- The sweep deletes rows whose webhook or event is gone.
create table webhook_deliveries (
  id               text primary key,
  webhook_id       text not null,
  event_id         text not null,
  position         bigint not null,
  instance_id      text,
  state            text not null default 'pending' check (state in ('pending', 'delivered', 'failed')),
  -- All attempts, and those of the present retry schedule.
  attempts         integer not null default 0,
  tries            smallint not null default 0,
  next_attempt_at  timestamptz,
  created_at       timestamptz not null default now(),
  first_at         timestamptz,
  first_status     smallint,
  first_latency_ms integer,
  first_error      text,
  first_response   text,
  unique (webhook_id, position)
);
create index webhook_deliveries_first on webhook_deliveries (webhook_id, position)
  where state = 'pending' and next_attempt_at is null;
create index webhook_deliveries_again on webhook_deliveries (webhook_id, next_attempt_at)
  where state = 'pending' and next_attempt_at is not null;
create index webhook_deliveries_failed on webhook_deliveries (webhook_id, position) where state = 'failed';

create table webhook_attempts (
  delivery_id text not null,
  number      integer not null,
  at          timestamptz not null,
  status      smallint,
  latency_ms  integer not null,
  error       text,
  response    text not null,
  primary key (delivery_id, number)
);
create index webhook_attempts_at on webhook_attempts using brin (at);

create table webhook_batches (
  webhook_id text not null,
  position   bigint not null,
  positions  bigint[] not null,
  ids        text[] not null,
  size       integer not null,
  created_at timestamptz not null default now(),
  primary key (webhook_id, position)
);

-- The lease of the process that sends a webhook's deliveries.
create table webhook_drains (
  webhook_id text primary key,
  owner      text not null,
  until      timestamptz not null,
  again      boolean not null default false
);
