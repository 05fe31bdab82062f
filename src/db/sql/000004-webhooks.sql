-- Receivers of an organisation's events. A row without an organisation is one that was deleted: the sweep removes what
-- belongs to it bit by bit, then the row.
create table webhooks (
  id                  text primary key,
  org_id              text references organisations on delete set null,
  name                text not null,
  url                 text not null,
  events              text[] not null,
  status              text not null default 'enabled' check (status in ('enabled', 'disabled')),
  disabled_reason     text check (disabled_reason in ('requested', 'gone', 'failing')),
  disabled_at         timestamptz,
  -- Sealed; the one before the last rotation signs too until its time is over.
  secret              bytea not null,
  previous_secret     bytea,
  previous_expires_at timestamptz,
  -- Since when there was nothing but failure.
  failing_since       timestamptz,
  failing_told        boolean not null default false,
  -- Its answers take so long that it is served in the slow lane.
  slow                boolean not null default false,
  version             bigint not null default 1,
  created_by          text not null,
  created_at          timestamptz not null default now(),
  updated_at          timestamptz not null default now(),
  check ((status = 'disabled') = (disabled_reason is not null))
);
create index webhooks_page on webhooks (org_id, id desc);

-- One event for one webhook, however often it is sent. No foreign keys: a row of these is written for every event and
-- receiver, and checking them would cost as much as writing it; the sweep removes what is left over.
create table webhook_deliveries (
  id              text primary key,
  webhook_id      text not null,
  event_id        text not null,
  position        bigint not null,
  instance_id     text,
  state           text not null default 'pending' check (state in ('pending', 'delivered', 'failed')),
  -- All that were ever made, and those of the schedule that runs now.
  attempts        integer not null default 0,
  tries           smallint not null default 0,
  -- Null while pending: at once, and in the order of positions.
  next_attempt_at timestamptz,
  created_at      timestamptz not null default now(),
  unique (webhook_id, position)
);
-- Two, each in the order in which it is read: of one for both, every read would sort a whole backlog.
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

-- Who sends a webhook's deliveries just now: one process at a time, for as long as it renews its lease.
create table webhook_drains (
  webhook_id text primary key,
  owner      text not null,
  until      timestamptz not null,
  -- There is more to look at than the owner has seen.
  again      boolean not null default false
);
