create table users (
  id              text primary key,
  email           text not null,
  email_key       text not null unique,
  email_confirmed boolean not null default false,
  name            text not null,
  password_hash   text,
  created_at      timestamptz not null default now()
);
comment on table users is 'Accounts of people.';
comment on column users.email is 'The e-mail address as it was entered.';
comment on column users.email_key is 'The e-mail address in lower case, for comparison.';
comment on column users.email_confirmed is 'The account''s owner has proved that mail to the address arrives.';
comment on column users.password_hash is 'argon2id, as a PHC string. Null: the account has no password and logs in at an OpenID provider.';

create table identities (
  issuer        text not null,
  subject       text not null,
  user_id       text not null references users on delete cascade,
  refresh_token bytea,
  checked_at    timestamptz not null default now(),
  claimed_until timestamptz,
  created_at    timestamptz not null default now(),
  primary key (issuer, subject),
  unique (issuer, user_id)
);
create index identities_user on identities (user_id);
create index identities_due on identities (checked_at) where refresh_token is not null;
comment on table identities is 'Which account belongs to which user of an OpenID provider.';
comment on column identities.issuer is 'The provider.';
comment on column identities.subject is 'The provider''s id of the user.';
comment on column identities.refresh_token is 'The provider''s refresh token, encrypted. Null: the provider gave none, or has refused it.';
comment on column identities.checked_at is 'When the provider last answered for the user.';
comment on column identities.claimed_until is 'Until then one process asks the provider and others wait, because most refresh tokens may be used only once.';

create table sessions (
  id             text primary key,
  user_id        text not null references users on delete cascade,
  refresh_family bytea unique,
  refresh_hash   bytea,
  ip             text not null,
  user_agent     text not null,
  created_at     timestamptz not null default now(),
  last_seen_at   timestamptz not null default now(),
  ends_at        timestamptz not null
);
create index sessions_user on sessions (user_id);
create index sessions_end on sessions (ends_at);
comment on table sessions is 'Logins. A session lasts up to 30 days; its bearer tokens last an hour each and are renewed with its refresh token.';
comment on column sessions.refresh_family is 'SHA-256 of the random part that all refresh tokens of the session share. It finds the session of a replaced token too.';
comment on column sessions.refresh_hash is 'SHA-256 of the present refresh token.';
comment on column sessions.ip is 'The address that logged in.';
comment on column sessions.user_agent is 'The User-Agent that logged in.';
comment on column sessions.ends_at is 'The session is over then, however often it is refreshed.';

create table session_tokens (
  token_hash bytea primary key,
  session_id text not null references sessions on delete cascade,
  expires_at timestamptz not null
);
create index session_tokens_session on session_tokens (session_id);
create index session_tokens_expiry on session_tokens (expires_at);
comment on table session_tokens is 'Bearer tokens of sessions.';
comment on column session_tokens.token_hash is 'SHA-256 of the token.';

create table replaced_refresh_tokens (
  token_hash  bytea primary key,
  session_id  text not null references sessions on delete cascade,
  replaced_at timestamptz not null default clock_timestamp()
);
create index replaced_refresh_tokens_session on replaced_refresh_tokens (session_id);
comment on table replaced_refresh_tokens is 'Refresh tokens that were replaced a moment ago and are still accepted. Later use of a replaced token ends the session.';
comment on column replaced_refresh_tokens.token_hash is 'SHA-256 of the token.';

create table sudo_grants (
  token_hash bytea primary key,
  session_id text not null references sessions on delete cascade,
  user_id    text not null references users on delete cascade,
  expires_at timestamptz not null
);
create index sudo_grants_session on sudo_grants (session_id);
create index sudo_grants_user on sudo_grants (user_id);
comment on table sudo_grants is 'Recent password checks. The sudo cookie carries the token of one for five minutes.';
comment on column sudo_grants.token_hash is 'SHA-256 of the cookie''s token.';

create table lockouts (
  email_key    text primary key,
  failures     integer not null default 0,
  locks        integer not null default 0,
  locked_until timestamptz,
  updated_at   timestamptz not null default now()
);
comment on table lockouts is 'Failed logins by e-mail address, whether or not an account has the address.';
comment on column lockouts.email_key is 'The e-mail address in lower case.';
comment on column lockouts.failures is 'Consecutive failures since the last success or lock.';
comment on column lockouts.locks is 'How often the address was locked since the last success. Each lock lasts twice as long as the one before.';
comment on column lockouts.locked_until is 'Until then even a correct password is refused. Null: not locked.';

create table mail_tokens (
  token_hash bytea primary key,
  kind       text not null check (kind in ('password_reset', 'confirm_email')),
  user_id    text not null references users on delete cascade,
  email      text,
  expires_at timestamptz not null
);
create index mail_tokens_user on mail_tokens (user_id);
comment on table mail_tokens is 'Single-use tokens that were sent by mail.';
comment on column mail_tokens.token_hash is 'SHA-256 of the token.';
comment on column mail_tokens.kind is 'What the token does: reset the password, or confirm an e-mail address.';
comment on column mail_tokens.email is 'confirm_email: the address that the token confirms. Else null.';

create table mfa_factors (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  type         text not null check (type in ('totp', 'webauthn')),
  name         text not null,
  secret       bytea,
  credential   jsonb,
  last_step    bigint,
  confirmed_at timestamptz,
  created_at   timestamptz not null default now(),
  last_used_at timestamptz
);
create index mfa_factors_user on mfa_factors (user_id);
create unique index mfa_factors_credential on mfa_factors ((credential ->> 'id')) where credential is not null;
comment on table mfa_factors is 'Second factors of accounts.';
comment on column mfa_factors.type is 'An app with time-based codes, or a security key or passkey.';
comment on column mfa_factors.secret is 'totp: the secret, encrypted. webauthn: null.';
comment on column mfa_factors.credential is 'webauthn: {id, public_key, counter, transports}. totp: null.';
comment on column mfa_factors.last_step is 'totp: the last time step that was accepted, so that a code works once.';
comment on column mfa_factors.confirmed_at is 'When the factor was first used. Null: it is not set up yet and does not count.';

create table recovery_codes (
  user_id   text not null references users on delete cascade,
  code_hash bytea not null,
  primary key (user_id, code_hash)
);
comment on table recovery_codes is 'Unused codes that replace a lost second factor.';
comment on column recovery_codes.code_hash is 'SHA-256 of the code, which is enough: a code has 80 random bits.';

create table webauthn_challenges (
  challenge  text primary key,
  user_id    text references users on delete cascade,
  purpose    text not null check (purpose in ('register', 'login')),
  expires_at timestamptz not null
);
comment on table webauthn_challenges is 'Challenges of WebAuthn that wait for their answer.';
comment on column webauthn_challenges.challenge is 'Base64url, as the browser returns it.';
comment on column webauthn_challenges.user_id is 'register: the account that adds the factor. login: null, or the account that gave its password.';
comment on column webauthn_challenges.purpose is 'Whether the answer adds a factor or logs in.';

create table known_locations (
  user_id       text not null references users on delete cascade,
  location_hash bytea not null,
  last_seen_at  timestamptz not null default now(),
  primary key (user_id, location_hash)
);
comment on table known_locations is 'Where an account has logged in from. A login from elsewhere raises a notification.';
comment on column known_locations.location_hash is 'A hash of account, network and browser.';

create table device_logins (
  device_hash  bytea primary key,
  user_code    text not null unique,
  sudo         boolean not null,
  ip           text not null,
  user_agent   text not null,
  confirmed_by text references sessions on delete cascade,
  created_at   timestamptz not null default now(),
  expires_at   timestamptz not null
);
create index device_logins_expiry on device_logins (expires_at);
create index device_logins_confirmed on device_logins (confirmed_by);
comment on table device_logins is 'Logins that a program asks for and a person confirms in a browser.';
comment on column device_logins.device_hash is 'SHA-256 of the code with which the program polls.';
comment on column device_logins.user_code is 'Eight letters that the person compares.';
comment on column device_logins.sudo is 'The program also asks for a sudo grant.';
comment on column device_logins.ip is 'The address of the program.';
comment on column device_logins.user_agent is 'The User-Agent of the program.';
comment on column device_logins.confirmed_by is 'The session that confirmed the login, and whose end removes it. Null: nobody has confirmed it.';
