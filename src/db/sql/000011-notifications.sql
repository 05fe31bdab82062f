create table notifications (
  id            text not null,
  -- usr_… or sa_…. No foreign key: deleting the recipient deletes its notifications.
  recipient     text not null,
  kind          text not null,
  title         text not null,
  body          text not null,
  resource_type text,
  resource_id   text,
  data          jsonb not null,
  count         bigint not null,
  -- The position and id of the event that raised the notification last: streams resume from it.
  position      bigint not null,
  event_id      text not null,
  created_at    timestamptz not null,
  raised_at     timestamptz not null,
  read_at       timestamptz,
  -- The organisation whose API keys may read it. Null: it concerns the account.
  org_id        text,
  primary key (recipient, id)
);
create index notifications_age on notifications using brin (created_at);
-- Whether a new notification repeats an unread one is one comparison of this expression.
create index notifications_repeats on notifications
  ((recipient || ' ' || kind || ' ' || coalesce(resource_id, '')), id desc)
  where read_at is null and kind <> 'api_key.created';
create index notifications_stream on notifications (recipient, position);
create index notifications_unread on notifications (recipient, id desc) where read_at is null;

-- Only preferences that differ from the default.
create table notification_preferences (
  user_id text not null references users on delete cascade,
  kind    text not null,
  mail    boolean not null,
  primary key (user_id, kind)
);

create table notification_mails (
  user_id       text not null references users on delete cascade,
  id            bigint not null generated always as identity,
  batch         text not null,
  notifications text[] not null,
  more          integer not null default 0,
  attempts      integer not null default 0,
  due_at        timestamptz not null default now(),
  primary key (user_id, id)
);
create index notification_mails_due on notification_mails (due_at);
create unique index notification_mails_open on notification_mails (user_id, batch) where attempts = 0;

create table mails (
  id         text primary key,
  sealed     bytea not null,
  attempts   integer not null default 0,
  due_at     timestamptz not null default now(),
  good_until timestamptz not null
);
create index mails_due on mails (due_at);

-- When the last mails of a kind went to an address (in lower case), oldest first, within a quarter of an hour.
create table mail_counts (
  address text not null,
  kind    text not null,
  sent_at timestamptz[] not null,
  primary key (address, kind)
);
