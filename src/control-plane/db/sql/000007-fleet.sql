create table installation (
  only_one               boolean primary key default true check (only_one),
  root_key               bytea not null,
  new_root_key           bytea,
  hosts_certificate      text,
  hosts_key              bytea,
  next_certificate       text,
  next_key               bytea,
  next_announced_at      timestamptz,
  next_announced_seconds real not null default 0,
  check ((hosts_certificate is null) = (hosts_key is null)),
  check ((next_certificate is null) = (next_key is null))
);
comment on table installation is 'What all control planes of the installation share. At most one row.';
comment on column installation.root_key is 'The key that every other key of the installation is derived from, encrypted with the secret key.';
comment on column installation.new_root_key is 'The same key, encrypted with the secret key that is to replace the present one. Null: none is.';
comment on column installation.hosts_certificate is 'PEM. The certificate that hosts, ingresses and other control planes pin. Null: no control plane has listened to hosts yet.';
comment on column installation.hosts_key is 'The certificate''s private key, encrypted.';
comment on column installation.next_certificate is 'PEM. The certificate that replaces it once every control plane shows it. Hosts learn of it first. Null: none does.';
comment on column installation.next_key is 'The next certificate''s private key, encrypted.';
comment on column installation.next_announced_at is 'When a control plane last sent the next certificate to hosts.';
comment on column installation.next_announced_seconds is 'For how long control planes have sent the next certificate to hosts, without the gaps.';

create table control_planes (
  id          text primary key check (id ~ '^[0-9a-f]{12}$'),
  url         text not null,
  fingerprint text not null,
  started_at  timestamptz not null default now(),
  seen_at     timestamptz not null default now()
);
comment on table control_planes is 'Control planes that hosts, ingresses and other control planes reach.';
comment on column control_planes.id is 'New at each start of the process. Ids of its calls to hosts begin with it.';
comment on column control_planes.url is 'Where its internal API is reached.';
comment on column control_planes.fingerprint is 'The fingerprint of the certificate that it shows there.';
comment on column control_planes.seen_at is 'The control plane renews it. It counts as live for 15 s.';

create table hosts (
  id               text primary key,
  name             text not null,
  remote           boolean not null default false,
  token_hash       bytea not null unique,
  next_token_hash  bytea unique,
  credential_since timestamptz not null default now(),
  rotate_requested boolean not null default false,
  join_hash        bytea unique,
  join_expires_at  timestamptz,
  protocol         integer,
  facts            jsonb,
  cpus             integer check (cpus > 0),
  memory_mib       integer check (memory_mib > 0),
  labels           jsonb not null default '{}',
  taints           text[] not null default '{}',
  cordoned         boolean not null default false,
  draining         boolean not null default false,
  drain_vms        integer,
  beat             bigint not null default 0,
  lease_ms         integer check (lease_ms > 0),
  lost_at          timestamptz,
  last_seen_at     timestamptz,
  created_at       timestamptz not null default now(),
  removed_at       timestamptz
);
create unique index hosts_name on hosts (name) where removed_at is null;
comment on table hosts is 'Machines that run VMs. A removed host keeps its row for the VMs that ran there; another host of its name has a row of its own.';
comment on column hosts.remote is 'The host is another machine: its VMs are reached through the agent''s own connection, and addresses that it reports are not dialled.';
comment on column hosts.token_hash is 'SHA-256 of the agent''s credential.';
comment on column hosts.next_token_hash is 'SHA-256 of the credential that replaces the present one once the agent has used it.';
comment on column hosts.credential_since is 'Since when the agent has used its present credential.';
comment on column hosts.rotate_requested is 'The agent is to replace its credential now.';
comment on column hosts.join_hash is 'SHA-256 of the one-time join token. It stays after its use, so that a host whose answer was lost may repeat the join.';
comment on column hosts.join_expires_at is 'Until when the join token is accepted.';
comment on column hosts.protocol is 'The version of the agent protocol that the agent last spoke. Null: it has not called yet.';
comment on column hosts.facts is 'What the agent last reported about its machine (HostFacts in src/protocol).';
comment on column hosts.cpus is 'The CPUs that VMs may use on a remote host. Null: the operator has not said.';
comment on column hosts.memory_mib is 'The memory that VMs may use on a remote host. Null: the operator has not said.';
comment on column hosts.labels is 'The operator''s labels, such as {"zone": "a"}, which instances may ask for.';
comment on column hosts.taints is 'The host takes only instances that tolerate all of these.';
comment on column hosts.cordoned is 'The host gets no new VM.';
comment on column hosts.draining is 'Its VMs are moved to other hosts. A draining host is also cordoned.';
comment on column hosts.drain_vms is 'How many VMs it had when its drain began. Null: it is not drained.';
comment on column hosts.beat is 'Incremented by each renewal of the lease. A control plane sees by it that the host lives, without comparing clocks.';
comment on column hosts.lease_ms is 'The length of the host''s lease. When it expires, the host pauses its VMs. Null: no lease, and the host is never lost.';
comment on column hosts.lost_at is 'Since when the lease has been expired. Null: the host is not lost.';
comment on column hosts.last_seen_at is 'The last call of the agent.';
comment on column hosts.removed_at is 'When the operator removed the host and revoked its credential. Null: it is part of the fleet.';

create table ingresses (
  id             text primary key,
  name           text not null unique,
  token_hash     bytea not null unique,
  host_id        text references hosts on delete cascade,
  protocol       integer,
  watching_since timestamptz,
  reported_at    timestamptz,
  created_at     timestamptz not null default now()
);
comment on table ingresses is 'Processes that hold the ports of instances.';
comment on column ingresses.token_hash is 'SHA-256 of the ingress'' credential.';
comment on column ingresses.host_id is 'The host of the same machine, whose VMs the ingress dials itself. Null: it is on another machine, and every connection takes a tunnel.';
comment on column ingresses.protocol is 'The version of the agent protocol that it last spoke. Null: it has not called yet.';
comment on column ingresses.watching_since is 'Since when it has counted connections without a gap. Null: it has not reported yet.';
comment on column ingresses.reported_at is 'When it last reported. Null: it has not reported yet.';

create table host_use (
  host_id    text primary key references hosts on delete cascade,
  vms        integer not null default 0,
  memory_mib bigint not null default 0
);
comment on table host_use is 'What VMs use of each host, so that a placement need not count. Placements on one host wait for each other here.';
comment on column host_use.vms is 'VMs that are on the host and use its CPUs.';
comment on column host_use.memory_mib is 'The memory of these VMs.';

create table host_org_use (
  host_id text not null references hosts on delete cascade,
  org_id  text not null references organisations on delete cascade,
  vms     integer not null default 0,
  primary key (host_id, org_id)
);
create index host_org_use_org on host_org_use (org_id);
comment on table host_org_use is 'How many VMs each organisation has on each host, so that a placement spreads them.';
comment on column host_org_use.vms is 'VMs of the organisation that are on the host.';
