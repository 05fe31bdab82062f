create table service_accounts (
  id         text primary key,
  org_id     text not null references organisations on delete cascade,
  name       text not null,
  scope      text not null,
  created_by text not null,
  created_at timestamptz not null default now(),
  constraint service_accounts_of_org unique (org_id, id)
);
create index service_accounts_page on service_accounts (org_id, id desc);
comment on table service_accounts is 'Principals that are no people: each has a scope instead of a role.';
comment on column service_accounts.scope is 'What the service account may do, such as "instances:read vm:write" or "*".';
comment on column service_accounts.created_by is 'The principal that created it.';

create table api_keys (
  id                  text primary key,
  org_id              text not null,
  user_id             text,
  service_account_id  text,
  name                text not null,
  scope               text not null,
  allowed_cidrs       text[] not null default '{}',
  token_hash          bytea not null unique,
  prefix              text not null,
  last4               text not null,
  previous_hash       bytea,
  previous_expires_at timestamptz,
  created_by_key      text,
  parent_key          text references api_keys on delete set null deferrable initially deferred,
  notified_expires_at timestamptz,
  created_at          timestamptz not null default now(),
  last_used_at        timestamptz,
  expires_at          timestamptz,
  constraint api_keys_holder check ((user_id is null) <> (service_account_id is null)),
  foreign key (org_id, user_id) references memberships (org_id, user_id) on delete cascade,
  foreign key (org_id, service_account_id) references service_accounts (org_id, id) on delete cascade
);
create index api_keys_page on api_keys (org_id, user_id, id desc);
create index api_keys_service_account on api_keys (service_account_id, id desc) where service_account_id is not null;
create index api_keys_expiry on api_keys (expires_at) where expires_at is not null;
create index api_keys_parent on api_keys (parent_key) where parent_key is not null;
create unique index api_keys_previous_hash on api_keys (previous_hash) where previous_hash is not null;
comment on table api_keys is 'API keys. Each belongs to a member or to a service account of its organisation.';
comment on column api_keys.user_id is 'The member whose key it is. Null: a service account has it.';
comment on column api_keys.service_account_id is 'The service account whose key it is. Null: a member has it.';
comment on column api_keys.scope is 'What the key may do, within what its holder may do.';
comment on column api_keys.allowed_cidrs is 'The networks from which the key is accepted. Empty: from everywhere.';
comment on column api_keys.token_hash is 'SHA-256 of the token.';
comment on column api_keys.prefix is 'The beginning of the token, which may be shown again.';
comment on column api_keys.last4 is 'The end of the token, which may be shown again.';
comment on column api_keys.previous_hash is 'SHA-256 of the token before the last rotation, which is accepted until previous_expires_at.';
comment on column api_keys.previous_expires_at is 'Until when the token before the last rotation is accepted.';
comment on column api_keys.created_by_key is 'The API key that created this one, also when that one is gone. Null: a session did.';
comment on column api_keys.parent_key is 'The nearest ancestor that still exists, so that a revocation reaches all descendants. Deferred: a backup restores rows in any order.';
comment on column api_keys.notified_expires_at is 'The expiry date that a notification has announced.';
comment on column api_keys.last_used_at is 'Written at most once a minute.';
