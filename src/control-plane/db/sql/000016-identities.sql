-- Who a user is at an OpenID provider.
create table identities (
  issuer        text not null,
  subject       text not null,
  user_id       text not null references users on delete cascade,
  -- Encrypted with the server's key. Null: the provider gave none, or refused it.
  refresh_token bytea,
  -- When the provider last answered for the user.
  checked_at    timestamptz not null default now(),
  -- A process asks the provider until then: most refresh tokens may be used only once.
  claimed_until timestamptz,
  created_at    timestamptz not null default now(),
  primary key (issuer, subject),
  unique (issuer, user_id)
);
create index identities_user on identities (user_id);
create index identities_due on identities (checked_at) where refresh_token is not null;

-- Null: the account has no password. It logs in at an OpenID provider.
alter table users alter column password_hash drop not null;

-- The provider's groups decide the role, and whether the membership exists.
alter table memberships add column by_groups boolean not null default false;
