-- expand
-- The certificate that replaces the one that hosts pin. Hosts learn of it before a control plane shows it. When all show it, it takes
-- the other's place.
alter table installation
  add column next_certificate text,
  add column next_key bytea,
  -- When a control plane last told hosts of it, and for how long they were told, without the gaps.
  add column next_told_at timestamptz,
  add column next_told_seconds real not null default 0,
  add check ((next_certificate is null) = (next_key is null));
