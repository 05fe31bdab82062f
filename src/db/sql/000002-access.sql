-- Sessions: the session itself lasts up to 30 days; its bearer tokens an hour each, renewed by the refresh token.

alter table sessions add column refresh_hash bytea unique;
alter table sessions add column ends_at timestamptz;
update sessions set ends_at = expires_at;
alter table sessions alter column ends_at set not null;

create table session_tokens (
  -- SHA-256 of the bearer token.
  token_hash bytea primary key,
  session_id text not null references sessions on delete cascade,
  expires_at timestamptz not null
);
create index session_tokens_session on session_tokens (session_id);
create index session_tokens_expiry on session_tokens (expires_at);
insert into session_tokens (token_hash, session_id, expires_at) select token_hash, id, expires_at from sessions;
alter table sessions drop column token_hash;
alter table sessions drop column expires_at;
create index sessions_end on sessions (ends_at);

-- Recent password re-verification, carried by a cookie, good for five minutes by this clock.
create table sudo_grants (
  token_hash bytea primary key,
  session_id text not null references sessions on delete cascade,
  user_id    text not null references users on delete cascade,
  expires_at timestamptz not null
);
create index sudo_grants_session on sudo_grants (session_id);
create index sudo_grants_user on sudo_grants (user_id);

-- Failures in a row by e-mail address, whether or not there is an account.
create table lockouts (
  email_key    text primary key,
  failures     integer not null default 0,
  locks        integer not null default 0,
  locked_until timestamptz,
  updated_at   timestamptz not null default now()
);

-- Single-use tokens that go by mail.
create table mail_tokens (
  token_hash bytea primary key,
  kind       text not null check (kind in ('password_reset', 'email_change')),
  user_id    text not null references users on delete cascade,
  -- The new address of an e-mail change.
  email      text,
  expires_at timestamptz not null
);
create index mail_tokens_user on mail_tokens (user_id);

-- Second factors -------------------------------------------------------------------------------------------

create table mfa_factors (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  type         text not null check (type in ('totp', 'webauthn')),
  name         text not null,
  -- totp: the secret, sealed under the server's key. webauthn: null.
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
  -- SHA-256 of the code: it has 80 random bits.
  code_hash bytea not null,
  primary key (user_id, code_hash)
);

create table webauthn_challenges (
  challenge  text primary key,
  -- Null for a login that has no account yet.
  user_id    text references users on delete cascade,
  purpose    text not null check (purpose in ('register', 'login')),
  expires_at timestamptz not null
);

-- Organisations ----------------------------------------------------------------------------------------------

create table invitations (
  id         text primary key,
  org_id     text not null references organisations on delete cascade,
  email      text not null,
  role       text not null check (role in ('owner', 'admin', 'member', 'billing')),
  token_hash bytea not null unique,
  invited_by text not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);
create index invitations_page on invitations (org_id, id desc);

create table service_accounts (
  id         text primary key,
  org_id     text not null references organisations on delete cascade,
  name       text not null,
  scope      text not null,
  created_by text not null,
  created_at timestamptz not null default now()
);
create index service_accounts_page on service_accounts (org_id, id desc);

alter table api_keys alter column user_id drop not null;
alter table api_keys add column service_account_id text references service_accounts on delete cascade;
alter table api_keys add constraint api_keys_holder check ((user_id is null) <> (service_account_id is null));
alter table api_keys add column allowed_cidrs text[] not null default '{}';
-- After a rotation the key before it may go on for a while.
alter table api_keys add column previous_hash bytea unique;
alter table api_keys add column previous_expires_at timestamptz;
create index api_keys_service_account on api_keys (service_account_id, id desc) where service_account_id is not null;

-- Quotas: null is no limit.
alter table organisations add column quota_instances integer;
alter table organisations add column quota_cpus integer;
alter table organisations add column quota_memory_mib bigint;
alter table organisations add column quota_disk_gib bigint;

-- Idempotency: the answer to a request that succeeded, sealed under the server's key ------------------------

create table idempotency_keys (
  org_id      text not null references organisations on delete cascade,
  principal   text not null,
  route       text not null,
  key         text not null,
  -- SHA-256 of the canonical body.
  fingerprint bytea not null,
  status      integer not null,
  response    bytea not null,
  expires_at  timestamptz not null,
  primary key (org_id, principal, route, key)
);
create index idempotency_keys_expiry on idempotency_keys (expires_at);

-- The audit log: one chain an organisation, each entry authenticated together with the one before it ---------

create table audit_heads (
  org_id text primary key,
  seq    bigint not null,
  mac    bytea not null
);

create table audit_log (
  org_id     text not null,
  seq        bigint not null,
  id         text not null unique,
  at         timestamptz not null,
  actor      text not null,
  action     text not null,
  target     text,
  ip         text,
  request_id text,
  data       jsonb not null,
  mac        bytea not null,
  primary key (org_id, seq)
);
create index audit_log_page on audit_log (org_id, id desc);
