create table ssh_keys (
  id           text primary key,
  user_id      text not null references users on delete cascade,
  org_id       text,
  name         text not null,
  type         text not null,
  fingerprint  text not null,
  public_key   text not null,
  parent_key   text references api_keys on delete set null,
  created_at   timestamptz not null default now(),
  last_used_at timestamptz,
  unique (user_id, fingerprint),
  foreign key (org_id, user_id) references memberships (org_id, user_id) on delete cascade
);
create index ssh_keys_membership on ssh_keys (org_id, user_id) where org_id is not null;
create index ssh_keys_parent on ssh_keys (parent_key) where parent_key is not null;
comment on table ssh_keys is 'SSH public keys of accounts.';
comment on column ssh_keys.org_id is 'Of a key that an API key registered: it grants access to this organisation''s instances only, and ends with its owner''s membership. Null: it grants access wherever its owner''s keys do.';
comment on column ssh_keys.type is 'The algorithm, such as ssh-ed25519.';
comment on column ssh_keys.fingerprint is 'SHA-256 as ssh-keygen shows it: SHA256:…';
comment on column ssh_keys.public_key is 'Type and key as in authorized_keys, without comment.';
comment on column ssh_keys.parent_key is 'The API key that registered it, or that key''s nearest ancestor that still exists. Null: there is none.';
comment on column ssh_keys.last_used_at is 'When a guest last accepted it.';
