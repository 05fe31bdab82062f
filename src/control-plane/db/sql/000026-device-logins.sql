-- Logins that a program asks for and a person confirms in a browser.
create table device_logins (
  -- SHA-256 of what the program asks with.
  device_hash  bytea primary key,
  -- What the person compares: eight letters.
  user_code    text not null unique,
  -- The program also asks for a sudo grant.
  sudo         boolean not null,
  ip           text not null,
  user_agent   text not null,
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null,
  -- The session that confirmed it. Its end takes the login with it.
  confirmed_by text references sessions on delete cascade
);
create index device_logins_expiry on device_logins (expires_at);
create index device_logins_confirmed on device_logins (confirmed_by);
