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
  -- The notification waits for a mail that is composed then, or later. Null: it waits for none.
  mail_after    timestamptz,
  primary key (recipient, id)
);
create index notifications_age on notifications using brin (created_at);
-- Whether a new notification repeats an unread one is one comparison of this expression.
create index notifications_repeats on notifications
  ((recipient || ' ' || kind || ' ' || coalesce(resource_id, '')), id desc)
  where read_at is null and kind <> 'api_key.created';
create index notifications_stream on notifications (recipient, position);
create index notifications_mail on notifications (mail_after) where mail_after is not null;
create index notifications_unread on notifications (recipient, id desc) where read_at is null;

-- Only preferences that differ from the default.
create table notification_preferences (
  user_id text not null references users on delete cascade,
  kind    text not null,
  mail    boolean not null,
  primary key (user_id, kind)
);

-- The outbox of all mails.
create table mails (
  id         text primary key,
  kind       text not null,
  -- The account that a mail of notifications goes to.
  user_id    text references users on delete cascade,
  sealed     bytea not null,
  attempts   integer not null default 0,
  -- The next try. A process that sends the mail moves it on first, as its lease.
  due_at     timestamptz not null default now(),
  good_until timestamptz not null
);
create index mails_due on mails (due_at);
create index mails_user on mails (user_id, kind) where user_id is not null;

-- When the last mails of a kind went to an address (in lower case), oldest first, within a quarter of an hour.
create table mail_counts (
  address text not null,
  kind    text not null,
  sent_at timestamptz[] not null,
  primary key (address, kind)
);
