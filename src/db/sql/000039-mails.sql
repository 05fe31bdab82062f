-- Mails to an address, written by the change that they tell of. Sealed: most hold a single-use token.
create table mails (
  id         text primary key,
  sealed     bytea not null,
  attempts   integer not null default 0,
  -- Moved on while a process has it.
  due_at     timestamptz not null default now(),
  good_until timestamptz not null
);
create index mails_due on mails (due_at);
