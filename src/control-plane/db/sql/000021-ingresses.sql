-- An SSH address is a pair of host name and port, so that names can be added when the ports of one are used up.
alter table instances
  drop constraint instances_ssh_port_key,
  add constraint instances_ssh_address unique (ssh_host, ssh_port);

alter table free_ssh_ports add column host text not null default '127.0.0.1';
-- Until now all instances had the same name.
update free_ssh_ports set host = coalesce((select ssh_host from instances limit 1), host);
alter table free_ssh_ports
  drop constraint free_ssh_ports_pkey,
  add primary key (host, port);
drop index free_ssh_ports_order;
-- Addresses are taken in this order.
create index free_ssh_ports_order on free_ssh_ports (quarantined_at nulls first, port, host);

-- What identifies an instance's VMs on a host: their user, TAP device and own address derive from it. An instance keeps its slot on
-- a host for life, because its files there belong to that user.
create table host_slots (
  host_id     text not null references hosts on delete cascade,
  slot        integer not null check (slot between 1 and 65535),
  instance_id text not null references instances on delete cascade,
  primary key (host_id, slot),
  unique (host_id, instance_id)
);
create index host_slots_instance on host_slots (instance_id);
-- Until now it was the SSH port.
insert into host_slots (host_id, slot, instance_id)
select distinct v.host_id, i.ssh_port, i.id from vms v join instances i on i.id = v.instance_id where not v.released;

-- Processes that hold the ports of instances.
create table ingresses (
  id             text primary key,
  name           text not null unique,
  token_hash     bytea not null unique,
  -- The host of the same machine, whose VMs it dials itself. Null: on another machine, where every connection takes a tunnel.
  host_id        text references hosts on delete cascade,
  created_at     timestamptz not null default now(),
  -- The version of the agent protocol that it last spoke.
  protocol       integer,
  -- Since when it has counted connections without a gap, and when it last reported. Null: it has not reported yet.
  watching_since timestamptz,
  reported_at    timestamptz
);
-- `ingress_watch` stays for control planes of the version before.

-- Requests of an address to the routes that take a password or a token, counted over all control planes. Columns and their order are
-- those of rate-limiter-flexible, which also removes expired rows.
create table request_counts (
  key    text primary key,
  points integer not null default 0,
  expire bigint
);
