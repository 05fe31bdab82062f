create table notifications (
  id            text not null,
  recipient     text not null,
  org_id        text,
  kind          text not null,
  title         text not null,
  body          text not null,
  resource_type text,
  resource_id   text,
  data          jsonb not null,
  count         bigint not null,
  position      bigint not null,
  event_id      text not null,
  created_at    timestamptz not null,
  raised_at     timestamptz not null,
  read_at       timestamptz,
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
comment on table notifications is 'Notifications of accounts and service accounts.';
comment on column notifications.recipient is 'An account or a service account. Without a foreign key: deleting the recipient deletes its notifications.';
comment on column notifications.org_id is 'The organisation that it concerns, whose API keys may read it. Null: it concerns the account.';
comment on column notifications.kind is 'What it tells, such as "vm.failed" (src/control-plane/notifications/model.ts).';
comment on column notifications.resource_type is 'The kind of resource that it concerns. Null: none.';
comment on column notifications.resource_id is 'The id of that resource.';
comment on column notifications.data is 'Details, by kind.';
comment on column notifications.count is 'How often it was raised while it was unread.';
comment on column notifications.position is 'The position of the event that raised it last. Streams resume from it.';
comment on column notifications.event_id is 'The event that raised it last.';
comment on column notifications.raised_at is 'When it was raised last.';
comment on column notifications.read_at is 'Null: unread.';
comment on column notifications.mail_after is 'It waits for a mail that is composed then, or later. Null: it waits for none.';

create table notification_preferences (
  user_id text not null references users on delete cascade,
  kind    text not null,
  mail    boolean not null,
  primary key (user_id, kind)
);
comment on table notification_preferences is 'Preferences of accounts that differ from the default.';
comment on column notification_preferences.kind is 'The kind of notification.';
comment on column notification_preferences.mail is 'Whether such notifications are also mailed.';
