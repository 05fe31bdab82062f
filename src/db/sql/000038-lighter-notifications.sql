-- A mail is a row of the outbox, not each notification that it tells of: a thousand keys made at once are one row.
create temporary table mails_before on commit drop as
  select n.recipient as user_id, n.id, m.attempts, m.due_at,
    case when n.kind in ('account.locked', 'mfa.added', 'mfa.removed', 'password.changed') then n.id else n.kind end as batch
  from notification_mails m join notifications n on n.id = m.notification_id
  where n.user_id is not null;
drop table notification_mails;

-- A row is taken for a while by moving `due_at`, and is closed from then on: what is raised later has one of its own. It
-- goes when the mail is out, or when there was no use in trying on.
create table notification_mails (
  user_id       text not null references users on delete cascade,
  id            bigint generated always as identity,
  -- What goes into one: the kind, or the notification that has a mail of its own.
  batch         text not null,
  -- The ids of the first; how many come after those.
  notifications text[] not null,
  more          integer not null default 0,
  attempts      integer not null default 0,
  due_at        timestamptz not null default now(),
  primary key (user_id, id)
);
create unique index notification_mails_open on notification_mails (user_id, batch) where attempts = 0;
create index notification_mails_due on notification_mails (due_at);
insert into notification_mails (user_id, batch, notifications, more, attempts, due_at)
  select user_id, batch, (array_agg(id order by id))[:20], greatest(count(*) - 20, 0), attempts, max(due_at)
  from mails_before group by user_id, batch, attempts;

-- Whoever raises one holds its recipient until then, and whoever deletes a recipient deletes its notifications after it:
-- no row looks for that again.
alter table notifications
  drop column user_id,
  drop column service_account_id,
  drop constraint notifications_pkey,
  add primary key (recipient, id);
drop index notifications_page;

-- A key is made once, and most of what is raised is that.
drop index notifications_repeats;
create index notifications_repeats
  on notifications ((recipient || ' ' || kind || ' ' || coalesce(resource_id, '')), id desc)
  where read_at is null and kind <> 'api_key.created';
