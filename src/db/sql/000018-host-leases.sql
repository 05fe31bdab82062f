-- Leases of hosts, and hosts on other machines.

alter table hosts
  -- Raised by each renewal of the lease: whoever watches sees by it alone whether a host lives, whatever any clock says.
  add column beat       bigint not null default 0,
  -- The lease that the host says it keeps: past it, it has paused its VMs by itself. null: it keeps none and is never lost.
  add column lease_ms   integer check (lease_ms > 0),
  -- Silent past its lease. It ends with the next renewal.
  add column lost_at    timestamptz,
  -- On another machine: its VMs are reached through its agent's own connection, and no address that it tells is dialled.
  add column remote     boolean not null default false,
  -- It gets no new VM.
  add column draining   boolean not null default false,
  -- Its token is none any more; its row stays for the VMs that ran there.
  add column removed_at timestamptz;
