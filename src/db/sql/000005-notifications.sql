-- What people and service accounts are told. `position` is that of the event that raised the row last: who has read
-- up to one misses none, because positions follow commits.
create table notifications (
  id            text primary key,
  -- usr_… or sa_…
  recipient     text not null,
  user_id       text generated always as (case when recipient like 'usr\_%' then recipient end) stored
                references users on delete cascade,
  service_account_id text generated always as (case when recipient like 'sa\_%' then recipient end) stored
                references service_accounts on delete cascade,
  kind          text not null,
  title         text not null,
  body          text not null,
  resource_type text,
  resource_id   text,
  data          jsonb not null,
  count         bigint not null,
  position      bigint not null,
  -- The event at that position: where a stream goes on.
  event_id      text not null,
  created_at    timestamptz not null,
  -- Of the last of `count`.
  raised_at     timestamptz not null,
  read_at       timestamptz,
  check (num_nonnulls(user_id, service_account_id) = 1)
);
create index notifications_page on notifications (recipient, id desc);
create index notifications_unread on notifications (recipient, id desc) where read_at is null;
create index notifications_stream on notifications (recipient, position);
create index notifications_age on notifications (created_at);
create index notifications_user on notifications (user_id) where user_id is not null;
create index notifications_service_account on notifications (service_account_id) where service_account_id is not null;

-- Mail that is still to be sent of a notification. A row is taken for a while by moving `due_at`; it goes when the mail
-- is out, or when there was no use in trying on.
create table notification_mails (
  notification_id text primary key references notifications on delete cascade,
  attempts        integer not null default 0,
  due_at          timestamptz not null default now()
);
create index notification_mails_due on notification_mails (due_at);

-- Only what a person has set otherwise than it is by default.
create table notification_preferences (
  user_id text not null references users on delete cascade,
  kind    text not null,
  mail    boolean not null,
  primary key (user_id, kind)
);

-- Where a person has logged in from: a hash of network and browser.
create table known_places (
  user_id      text not null references users on delete cascade,
  place_hash   bytea not null,
  last_seen_at timestamptz not null default now(),
  primary key (user_id, place_hash)
);

-- The expiry that was told of: a key is told of once for each.
alter table api_keys add column expiry_told timestamptz;
create index api_keys_expiry on api_keys (expires_at) where expires_at is not null;

-- From more than 90 % of the root file system in use until it is less than 85 %.
alter table disks add column nearly_full boolean not null default false;

-- Streams read an organisation's events by type; the list of one instance too.
create index events_instance on events (instance_id, position desc) where instance_id is not null;
