-- What guests and the ingress say about connections.

-- Fingerprints of the keys that the guest lets in, said once nobody else is connected any more. While one of them is
-- not allowed any more, a revocation is not confirmed. Null: nothing said in this boot.
alter table vms add column applied_keys jsonb;
-- When the VM was last used: by an SSH connection, or by a call of the API.
alter table vms add column active_at timestamptz;

-- One row: since when the ingress has counted connections without a gap, and when it last said so.
create table ingress_watch (
  one         boolean primary key default true check (one),
  since       timestamptz not null,
  reported_at timestamptz not null
);
