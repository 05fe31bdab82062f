create table secrets (
  serial      bigint generated always as identity primary key,
  instance_id text not null references instances on delete cascade,
  name        text not null,
  hosts       text[] not null,
  placeholder text not null,
  value       bytea,
  updated_at  timestamptz not null default now(),
  unique (instance_id, name)
);
comment on table secrets is 'Secrets that a VM uses and cannot read: the guest has the placeholder, its host the value.';
comment on column secrets.serial is 'The order of their creation.';
comment on column secrets.hosts is 'Where the value may be sent: exact names, or "*." and a domain; in lower case.';
comment on column secrets.placeholder is 'What the guest has. It stays when the value is replaced.';
comment on column secrets.value is 'The value, encrypted and bound to instance and name. Null: a fork inherited the name without the value.';

create table instance_authorities (
  instance_id text primary key references instances on delete cascade,
  certificate text not null,
  private_key bytea not null,
  created_at  timestamptz not null default now()
);
comment on table instance_authorities is 'The certificate authority of an instance''s intercepted connections, which its guest trusts. It is made with the instance''s first secret and deleted with the last one.';
comment on column instance_authorities.certificate is 'PEM.';
comment on column instance_authorities.private_key is 'PEM, encrypted and bound to the instance.';
