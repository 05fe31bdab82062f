-- What operators say of hosts, and what instances ask of them.
alter table hosts
  add column labels jsonb not null default '{}',
  -- It takes only instances that tolerate all of these.
  add column taints text[] not null default '{}',
  -- Gets no new VM. `draining` from now on: its VMs are moved to other hosts, too.
  add column cordoned boolean not null default false,
  -- How many VMs it had when its drain began.
  add column drain_vms integer,
  -- SHA-256 of the one-time join token. Kept after its use, so that a host whose answer was lost may repeat the join.
  add column join_hash bytea unique,
  add column join_expires_at timestamptz,
  -- The credential that replaces `token_hash` once the host has used it.
  add column next_token_hash bytea unique,
  add column credential_since timestamptz not null default now(),
  add column rotate_requested boolean not null default false;
update hosts set cordoned = draining, draining = false;

alter table instances
  add column host_labels jsonb not null default '{}',
  add column tolerations text[] not null default '{}';

alter table vms
  -- It is to continue on another host, by its memory or from its disk. Any other change of the VM ends that.
  add column move text check (move in ('suspend', 'stop')),
  -- Why it could not move, for the operator.
  add column move_problem text,
  add column move_after timestamptz;
create index vms_moving on vms (instance_id) where move is not null;

-- What VMs use of each host, so that a placement need not count them. Placements on one host wait for each other here.
create table host_use (
  host_id    text primary key references hosts (id) on delete cascade,
  vms        integer not null default 0,
  memory_mib bigint not null default 0
);
create table host_org_use (
  host_id text not null references hosts (id) on delete cascade,
  org_id  text not null references organisations (id) on delete cascade,
  vms     integer not null default 0,
  primary key (host_id, org_id)
);
create index host_org_use_org on host_org_use (org_id);
insert into host_use (host_id, vms, memory_mib)
select h.id, count(i.id), coalesce(sum(i.memory_mib), 0)
from hosts h
left join vms v on v.host_id = h.id and v.state not in ('stopped', 'suspended', 'failed') and not v.released
left join instances i on i.id = v.instance_id
group by h.id;
insert into host_org_use (host_id, org_id, vms)
select v.host_id, i.org_id, count(*) from vms v join instances i on i.id = v.instance_id
where v.state not in ('stopped', 'suspended', 'failed') and not v.released
group by v.host_id, i.org_id;
