-- Secrets that a VM uses and cannot read: the guest has the placeholder, its host the value.
create table secrets (
  -- Sorts by creation.
  serial      bigint generated always as identity primary key,
  instance_id text not null references instances on delete cascade,
  name        text not null,
  -- Exact names, or `*.` and a domain; in lower case.
  hosts       text[] not null,
  -- What the guest has. Stays when the value is replaced.
  placeholder text not null,
  -- Sealed, bound to instance and name. Null: a fork inherited the name without the value.
  value       bytea,
  updated_at  timestamptz not null default now(),
  unique (instance_id, name)
);

-- The certificate authority of intercepted connections: one, made when the first secret is used.
create table secrets_authority (
  only_one    boolean primary key default true check (only_one),
  -- PEM.
  certificate text not null,
  -- PEM, sealed.
  private_key bytea not null,
  created_at  timestamptz not null default now()
);
