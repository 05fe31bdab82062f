-- What each instance used in an hour. Without foreign keys: it outlives instances and organisations, for 13 months.
create table usage_hours (
  instance_id         text not null,
  org_id              text not null,
  hour                timestamptz not null,
  running_seconds     double precision not null default 0,
  cpu_seconds         double precision not null default 0,
  -- MiB of memory times seconds that a VM ran.
  memory_mib_seconds  double precision not null default 0,
  -- Bytes in object storage times seconds.
  stored_byte_seconds double precision not null default 0,
  flushed_bytes       bigint not null default 0,
  -- Both ways, by HTTP ports.
  http_bytes          bigint not null default 0,
  primary key (instance_id, hour)
);
create index usage_hours_page on usage_hours (org_id, hour desc, instance_id desc);
create index usage_hours_old on usage_hours (hour);

-- One row: until when running time, memory and stored bytes are counted.
create table usage_clock (
  one           boolean primary key default true check (one),
  counted_until timestamptz not null default now()
);
insert into usage_clock default values;

create index vms_stopped_at on vms (stopped_at);
