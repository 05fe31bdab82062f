-- A ticket lets its holder onto a VM's serial console once, as the credential that asked for it: it is looked at again
-- for as long as the console is open.
create table console_tickets (
  ticket_hash     bytea primary key,
  instance_id     text not null references instances (id) on delete cascade,
  org_id          text not null references organisations (id) on delete cascade,
  credential_kind text not null check (credential_kind in ('session', 'key')),
  credential_id   text not null,
  expires_at      timestamptz not null
);

-- A script for an instance's first boot, until the disk that has run it is durable.
create table user_data (
  instance_id text primary key references instances (id) on delete cascade,
  script      text not null check (octet_length(script) <= 65536),
  given       boolean not null default false
);
