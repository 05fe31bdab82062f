create table denied_destinations (
  instance_id text not null references instances on delete cascade,
  destination text not null,
  port        integer not null,
  name        text,
  address     text,
  at          timestamptz not null,
  attempts    bigint not null,
  event_at    timestamptz,
  primary key (instance_id, destination, port)
);
create index denied_destinations_newest on denied_destinations (instance_id, at desc);
comment on table denied_destinations is 'What VMs were denied to reach, merged by destination: the last 100 of each instance.';
comment on column denied_destinations.destination is 'The name, or the address where no name is known.';
comment on column denied_destinations.port is '0: a look-up, or a protocol without ports.';
comment on column denied_destinations.name is 'The name that the guest asked for. Null: unknown.';
comment on column denied_destinations.address is 'The address of the last attempt. Null: it was a look-up.';
comment on column denied_destinations.at is 'The last attempt.';
comment on column denied_destinations.attempts is 'How often the VM tried.';
comment on column denied_destinations.event_at is 'The last event about it. Null: there was none.';
