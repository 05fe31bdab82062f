create table mails (
  id         text primary key,
  kind       text not null,
  user_id    text references users on delete cascade,
  content    bytea not null,
  attempts   integer not null default 0,
  due_at     timestamptz not null default now(),
  expires_at timestamptz not null
);
create index mails_due on mails (due_at);
create index mails_user on mails (user_id, kind) where user_id is not null;
comment on table mails is 'The outbox of all mails. A sent mail is deleted.';
comment on column mails.kind is 'What it is for, such as "password_reset".';
comment on column mails.user_id is 'The account that a mail of notifications goes to. Null: any other mail.';
comment on column mails.content is 'Address, subject and text, encrypted: the text may carry a token.';
comment on column mails.attempts is 'Failed attempts.';
comment on column mails.due_at is 'The next attempt. A process that sends the mail moves it on first, as its lease.';
comment on column mails.expires_at is 'From then on it is not sent any more.';

create table mail_counts (
  address text not null,
  kind    text not null,
  sent_at timestamptz[] not null,
  primary key (address, kind)
);
comment on table mail_counts is 'Mails of the last quarter of an hour, to bound how many one address receives.';
comment on column mail_counts.address is 'The address in lower case.';
comment on column mail_counts.kind is 'The kind of mail.';
comment on column mail_counts.sent_at is 'When mails of the kind went to the address, oldest first.';
