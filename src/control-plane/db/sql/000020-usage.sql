create table usage_hours (
  instance_id         text not null,
  org_id              text not null,
  hour                timestamptz not null,
  running_seconds     double precision not null default 0,
  cpu_seconds         double precision not null default 0,
  memory_mib_seconds  double precision not null default 0,
  stored_byte_seconds double precision not null default 0,
  flushed_bytes       bigint not null default 0,
  http_bytes          bigint not null default 0,
  primary key (instance_id, hour)
);
create index usage_hours_page on usage_hours (org_id, hour desc, instance_id desc);
create index usage_hours_old on usage_hours (hour);
comment on table usage_hours is 'What each instance used in an hour. Without foreign keys: it outlives instances and organisations, for 13 months.';
comment on column usage_hours.hour is 'The beginning of the hour.';
comment on column usage_hours.running_seconds is 'How long a VM ran.';
comment on column usage_hours.cpu_seconds is 'CPU time that the VM used.';
comment on column usage_hours.memory_mib_seconds is 'MiB of memory times seconds that a VM ran.';
comment on column usage_hours.stored_byte_seconds is 'Bytes in the object store times seconds.';
comment on column usage_hours.flushed_bytes is 'Bytes that flushes saved.';
comment on column usage_hours.http_bytes is 'Bytes through HTTP ports, both ways.';

create table usage_clock (
  only_one      boolean primary key default true check (only_one),
  counted_until timestamptz not null default now(),
  stored_until  timestamptz not null default now()
);
insert into usage_clock default values;
comment on table usage_clock is 'How far usage is counted. One row.';
comment on column usage_clock.counted_until is 'Until when running time and memory are counted.';
comment on column usage_clock.stored_until is 'Until when stored bytes are counted. A reader adds what is stored since then.';
