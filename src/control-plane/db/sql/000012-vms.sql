create table vms (
  id             text primary key,
  instance_id    text not null references instances on delete cascade,
  boot           integer not null,
  epoch          bigint not null,
  host_id        text not null references hosts,
  desired        text not null check (desired in ('running', 'suspended', 'stopped')),
  state          text not null check (state in ('starting', 'running', 'restarting', 'suspending',
                                                'suspended', 'stopping', 'stopped', 'failed')),
  force          boolean not null default false,
  reboots        integer not null default 0,
  resets         integer not null default 0,
  reason_code    text,
  reason_message text,
  reason_actor   text,
  guest_ran      boolean not null default false,
  generation     bigint not null default 0,
  commit_id      uuid,
  ssh_address    text,
  applied_keys   jsonb,
  move           text check (move in ('suspend', 'stop')),
  move_problem   text,
  move_after     timestamptz,
  released       boolean not null default false,
  active_at      timestamptz,
  started_at     timestamptz,
  stopped_at     timestamptz,
  suspended_at   timestamptz,
  restarted_at   timestamptz,
  restart_after  timestamptz,
  deadline_at    timestamptz,
  trace_context  jsonb,
  version        bigint not null default 1,
  unique (instance_id, boot)
);
create index vms_host on vms (host_id) where state <> 'stopped';
create index vms_deadline on vms (deadline_at) where deadline_at is not null;
create index vms_moving on vms (instance_id) where move is not null;
create index vms_failed on vms (instance_id) where state = 'failed';
create index vms_stopped_at on vms (stopped_at);
comment on table vms is 'The boots of instances, a row each. The one with the highest number is the instance''s VM.';
comment on column vms.boot is 'Numbers the boots of the instance.';
comment on column vms.epoch is 'The disk''s epoch that this boot writes with.';
comment on column vms.host_id is 'The host that the boot was placed on.';
comment on column vms.desired is 'What the user wants of the VM.';
comment on column vms.state is 'What the VM does (src/control-plane/vms/model.ts has the transitions).';
comment on column vms.force is 'Stop without asking the guest.';
comment on column vms.reboots is 'How many reboots were asked for. The agent reports how many it has done.';
comment on column vms.resets is 'How often the guest was reset, by itself or by a restart. The ingress then ends the connections from before.';
comment on column vms.reason_code is 'Why the VM is in its state. Null: it needs no reason.';
comment on column vms.reason_message is 'The same as a sentence for users.';
comment on column vms.reason_actor is 'Who caused it: the id of a principal or host, or "system".';
comment on column vms.guest_ran is 'The guest may have run: only then may the disk have been written.';
comment on column vms.generation is 'The head that the VM started from or committed last. Its host''s overlay is compared with it.';
comment on column vms.commit_id is 'The random id of that head. Null: unknown.';
comment on column vms.ssh_address is 'Where sshd answers on the host. Null: it does not answer yet.';
comment on column vms.applied_keys is 'Fingerprints of the SSH keys that the guest accepts, reported after all connections with other keys have ended. While one of them is revoked, the revocation is not confirmed. Null: not reported in this boot.';
comment on column vms.move is 'The VM is to continue on another host, by its memory or from its disk. Any other change of the VM ends that.';
comment on column vms.move_problem is 'Why it could not move, for the operator. Null: no attempt has failed.';
comment on column vms.move_after is 'When the next attempt to move it may begin. Null: now.';
comment on column vms.released is 'The instance is being deleted, and this host has removed everything of it.';
comment on column vms.active_at is 'The last use, by an SSH connection or by an API call.';
comment on column vms.started_at is 'When the guest first answered. Null: not yet.';
comment on column vms.stopped_at is 'When the boot ended. Null: not yet.';
comment on column vms.suspended_at is 'Since when the durable head has held everything that the guest has written.';
comment on column vms.restarted_at is 'When this boot was started by itself, after the last one had failed. Null: it was not.';
comment on column vms.restart_after is 'When a failed VM may be started again by itself. Null: not looked at yet. Infinity: never.';
comment on column vms.deadline_at is 'The time limit of the present state. Null: it has none.';
comment on column vms.trace_context is 'The request that last asked for the state, and its span: {request_id, traceparent}. Null: none did.';
comment on column vms.version is 'Incremented by each change of the row. It guards updates.';

create table memory_images (
  key         text primary key,
  instance_id text not null references instances on delete cascade,
  vm_id       text unique,
  ref         jsonb not null,
  created_at  timestamptz not null default now()
);
create index memory_images_instance on memory_images (instance_id);
comment on table memory_images is 'The memory of suspended VMs, in the object store. It belongs to the suspended VM, then to the boot that resumes it. It is deleted once that VM is neither suspended nor starting, or once it belongs to none.';
comment on column memory_images.key is 'What the keys of all its objects begin with.';
comment on column memory_images.vm_id is 'The VM that may resume from it. Null: none may, because it was used.';
comment on column memory_images.ref is 'What a host needs to load it (MemoryRef in src/protocol).';

create table flushes (
  id            text primary key,
  instance_id   text not null references instances on delete cascade,
  vm_id         text not null,
  requested_by  text not null,
  state         text not null check (state in ('queued', 'running', 'done', 'failed')),
  finished_at   timestamptz,
  receipt       jsonb,
  error         jsonb,
  trace_context jsonb
);
create unique index flushes_queued on flushes (instance_id) where state = 'queued';
create unique index flushes_running on flushes (instance_id) where state = 'running';
create index flushes_finished on flushes (finished_at) where finished_at is not null;
create index flushes_instance on flushes (instance_id);
comment on table flushes is 'Flushes that callers wait for: at most one queued and one running for each instance.';
comment on column flushes.requested_by is 'The first of those who wait for it.';
comment on column flushes.receipt is 'The answer to those who wait. Null: it is not done.';
comment on column flushes.error is 'Why it failed: {code, message}. Null: it has not.';
comment on column flushes.trace_context is 'The request that asked for it, and its span: {request_id, traceparent}.';

create table metric_samples (
  instance_id text not null,
  at          timestamptz not null,
  seconds     integer not null check (seconds in (60, 3600)),
  minutes     smallint not null,
  means       real[] not null,
  mins        real[] not null,
  maxs        real[] not null,
  primary key (instance_id, at)
);
comment on table metric_samples is 'What VMs used: by the minute for a day, by the hour for 30 days. A period without a running VM has no row. Without a foreign key, whose check would wait for changes of the instance and hold them up; a deletion of the instance deletes its rows.';
comment on column metric_samples.at is 'The beginning of the period.';
comment on column metric_samples.seconds is 'The length of the period.';
comment on column metric_samples.minutes is 'How many minutes of the period were measured.';
comment on column metric_samples.means is 'The mean of each of METRICS (src/protocol/host-types.ts), in its order. An element is null where nothing was measured; so in mins and maxs.';
comment on column metric_samples.mins is 'The least value of each.';
comment on column metric_samples.maxs is 'The greatest value of each.';

create table console_tickets (
  ticket_hash     bytea primary key,
  instance_id     text not null references instances on delete cascade,
  exec_id         text references execs on delete cascade,
  org_id          text not null references organisations on delete cascade,
  credential_kind text not null check (credential_kind in ('session', 'key')),
  credential_id   text not null,
  secret_hash     bytea,
  expires_at      timestamptz not null,
  check ((credential_kind = 'key') = (secret_hash is not null))
);
create index console_tickets_instance on console_tickets (instance_id);
comment on table console_tickets is 'One-time tickets for a VM''s serial console, or for an exec''s stream. A ticket opens it with the credential that asked for the ticket, which is checked for as long as it is open.';
comment on column console_tickets.ticket_hash is 'SHA-256 of the ticket.';
comment on column console_tickets.exec_id is 'The exec that the ticket is for. Null: it is for the console.';
comment on column console_tickets.credential_kind is 'What asked for the ticket: a session or an API key.';
comment on column console_tickets.credential_id is 'The id of that session or API key.';
comment on column console_tickets.secret_hash is 'SHA-256 of the API key''s token at that time: a rotation keeps the key''s id, and ends what the old token opened. Null for a session.';
