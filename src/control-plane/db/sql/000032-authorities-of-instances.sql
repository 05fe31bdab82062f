-- expand
-- The certificate authority of an instance's intercepted connections, made with its first secret. It ends with the last one.
-- It replaces secrets_authority, which was one for all instances, so that each host that needed it could sign for the others' guests.
create table instance_authorities (
  instance_id text primary key references instances on delete cascade,
  -- PEM.
  certificate text not null,
  -- PEM, sealed, bound to the instance.
  private_key bytea not null,
  created_at  timestamptz not null default now()
);
