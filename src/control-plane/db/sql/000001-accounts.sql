create table users (
  id              text primary key,
  email           text not null,
  -- The address in lower case, for comparison.
  email_key       text not null unique,
  name            text not null,
  -- argon2id, as a PHC string.
  password_hash   text not null,
  created_at      timestamptz not null default now(),
  -- The account's owner has proved that mail to the address arrives.
  email_confirmed boolean not null default false
);

-- A session lasts up to 30 days. Its bearer tokens last an hour each and are renewed by the refresh token.
create table sessions (
  id             text primary key,
  user_id        text not null references users on delete cascade,
  ip             text not null,
  user_agent     text not null,
  created_at     timestamptz not null default now(),
  last_seen_at   timestamptz not null default now(),
  ends_at        timestamptz not null,
  -- All refresh tokens of a session start with the same random part. Its hash finds the session of a replaced token too.
  refresh_family bytea unique,
  refresh_hash   bytea
);
create index sessions_user on sessions (user_id);
create index sessions_end on sessions (ends_at);

create table session_tokens (
  -- SHA-256 of the bearer token.
  token_hash bytea primary key,
  session_id text not null references sessions on delete cascade,
  expires_at timestamptz not null
);
create index session_tokens_session on session_tokens (session_id);
create index session_tokens_expiry on session_tokens (expires_at);

-- Refresh tokens replaced a moment ago, which are still accepted.
create table replaced_refresh_tokens (
  token_hash  bytea primary key,
  session_id  text not null references sessions on delete cascade,
  replaced_at timestamptz not null default clock_timestamp()
);
create index replaced_refresh_tokens_session on replaced_refresh_tokens (session_id);

-- A recent password check. A cookie carries its token for five minutes.
create table sudo_grants (
  token_hash bytea primary key,
  session_id text not null references sessions on delete cascade,
  user_id    text not null references users on delete cascade,
  expires_at timestamptz not null
);
create index sudo_grants_session on sudo_grants (session_id);
create index sudo_grants_user on sudo_grants (user_id);

-- Consecutive failed logins by address, whether or not an account has it.
create table lockouts (
  email_key    text primary key,
  failures     integer not null default 0,
  locks        integer not null default 0,
  locked_until timestamptz,
  updated_at   timestamptz not null default now()
);

-- Single-use tokens sent by mail.
create table mail_tokens (
  token_hash bytea primary key,
  kind       text not null check (kind in ('password_reset', 'confirm_email')),
  user_id    text not null references users on delete cascade,
  -- The address to confirm.
  email      text,
  expires_at timestamptz not null
);
create index mail_tokens_user on mail_tokens (user_id);

create table mfa_factors (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  type         text not null check (type in ('totp', 'webauthn')),
  name         text not null,
  -- totp: the secret, encrypted with the server's key. webauthn: null.
  secret       bytea,
  -- webauthn: {id, public_key, counter, transports}.
  credential   jsonb,
  -- totp: the last time step accepted, so that a code works once.
  last_step    bigint,
  confirmed_at timestamptz,
  created_at   timestamptz not null default now(),
  last_used_at timestamptz
);
create index mfa_factors_user on mfa_factors (user_id);
create unique index mfa_factors_credential on mfa_factors ((credential ->> 'id')) where credential is not null;

create table recovery_codes (
  user_id   text not null references users on delete cascade,
  -- SHA-256 is enough: a code has 80 random bits.
  code_hash bytea not null,
  primary key (user_id, code_hash)
);

create table webauthn_challenges (
  challenge  text primary key,
  -- Null for a login.
  user_id    text references users on delete cascade,
  purpose    text not null check (purpose in ('register', 'login')),
  expires_at timestamptz not null
);

-- Where a person has logged in from: a hash of network and browser.
create table known_places (
  user_id      text not null references users on delete cascade,
  place_hash   bytea not null,
  last_seen_at timestamptz not null default now(),
  primary key (user_id, place_hash)
);
