-- A key belongs to a member or to a service account of its organisation.
create table api_keys (
  id                  text primary key,
  org_id              text not null,
  user_id             text,
  name                text not null,
  scope               text not null,
  -- SHA-256 of the token. `prefix` and `last4` are the parts that may be shown again.
  token_hash          bytea not null unique,
  prefix              text not null,
  last4               text not null,
  created_at          timestamptz not null default now(),
  last_used_at        timestamptz,
  expires_at          timestamptz,
  service_account_id  text,
  allowed_cidrs       text[] not null default '{}',
  -- The token before the last rotation, which is accepted until `previous_expires_at`.
  previous_hash       bytea,
  previous_expires_at timestamptz,
  -- The expiry date that a notification has announced.
  expiry_told         timestamptz,
  -- The API key that created this one; and the nearest ancestor that still exists, so that a revocation reaches all
  -- descendants. Deferred: a backup restores rows in any order.
  created_by_key      text,
  parent_key          text references api_keys on delete set null deferrable initially deferred,
  constraint api_keys_holder check ((user_id is null) <> (service_account_id is null)),
  foreign key (org_id, user_id) references memberships (org_id, user_id) on delete cascade,
  foreign key (org_id, service_account_id) references service_accounts (org_id, id) on delete cascade
);
create index api_keys_page on api_keys (org_id, user_id, id desc);
create index api_keys_service_account on api_keys (service_account_id, id desc) where service_account_id is not null;
create index api_keys_expiry on api_keys (expires_at) where expires_at is not null;
create index api_keys_parent on api_keys (parent_key) where parent_key is not null;
create unique index api_keys_previous_hash on api_keys (previous_hash) where previous_hash is not null;

create table ssh_keys (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  name         text not null,
  type         text not null,
  fingerprint  text not null,
  public_key   text not null,
  created_at   timestamptz not null default now(),
  last_used_at timestamptz,
  -- Set for a key that an API key has registered: it grants access to this organisation's instances only, and ends with
  -- its owner's membership. Null: it grants access wherever its owner's keys do.
  org_id       text,
  parent_key   text references api_keys on delete set null,
  unique (user_id, fingerprint),
  foreign key (org_id, user_id) references memberships (org_id, user_id) on delete cascade
);
create index ssh_keys_membership on ssh_keys (org_id, user_id) where org_id is not null;
create index ssh_keys_parent on ssh_keys (parent_key) where parent_key is not null;

-- Responses of successful requests, encrypted with the server's key, for requests that repeat their Idempotency-Key.
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
