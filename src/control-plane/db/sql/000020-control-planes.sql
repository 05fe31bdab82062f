-- What all control planes of the installation share. At most one row.
create table installation (
  only_one          boolean primary key default true check (only_one),
  -- Derived from the secret key: a control plane with another key is refused.
  key_check         bytea not null,
  -- What hosts, ingresses and other control planes pin; its key is sealed. Null: no control plane has listened to hosts yet.
  hosts_certificate text,
  hosts_key         bytea,
  check ((hosts_certificate is null) = (hosts_key is null))
);

-- The control planes that others reach. One is live if it was seen within 15 s.
create table control_planes (
  -- New at each start of the process. Ids of its calls to hosts begin with it.
  id          text primary key check (id ~ '^[0-9a-f]{12}$'),
  -- Where hosts, ingresses and other control planes reach its internal API.
  url         text not null,
  -- Of the certificate that it shows there.
  fingerprint text not null,
  started_at  timestamptz not null default now(),
  seen_at     timestamptz not null default now()
);
