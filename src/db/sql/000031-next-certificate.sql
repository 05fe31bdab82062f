-- expand
-- The certificate that replaces the one that hosts pin. Hosts learn of it before a control plane shows it. When all show it, it takes
-- the other's place.
alter table installation
  add column next_certificate text,
  add column next_key bytea,
  -- When control planes began to tell hosts of it.
  add column next_told_at timestamptz,
  add check ((next_certificate is null) = (next_key is null)),
  add check (next_told_at is null or next_certificate is not null);
