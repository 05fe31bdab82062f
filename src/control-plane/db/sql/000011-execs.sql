create table execs (
  id           text primary key,
  instance_id  text not null references instances on delete cascade,
  host_id      text not null,
  command      text[] not null,
  tty          boolean not null,
  stdin        boolean not null,
  state        text not null default 'starting' check (state in ('starting', 'running', 'exited', 'lost')),
  exit_code    integer,
  signal       integer,
  timed_out    boolean not null default false,
  lost_with    text check (lost_with in ('boot', 'supervisor')),
  output_bytes bigint not null default 0,
  waits        boolean not null default false,
  started_at   timestamptz not null default now(),
  ended_at     timestamptz,
  check ((ended_at is null) = (state in ('starting', 'running'))),
  check (exit_code is null or signal is null),
  check ((lost_with is not null) = (state = 'lost'))
);
create index execs_instance on execs (instance_id, id);
create index execs_running on execs (instance_id) where state in ('starting', 'running');
comment on table execs is 'Commands in guests that outlive their callers. Their output is on the host.';
comment on column execs.host_id is 'The host that has its output; the newest one, if its VM was moved.';
comment on column execs.command is 'The program and its arguments.';
comment on column execs.tty is 'It has a terminal.';
comment on column execs.stdin is 'Callers may send it input.';
comment on column execs.state is 'starting: its host has not answered yet, and callers do not see it.';
comment on column execs.exit_code is 'Null: it has not ended, or a signal ended it, or its end is unknown.';
comment on column execs.signal is 'The signal that ended it. Null: none did.';
comment on column execs.timed_out is 'It was ended because its time was up.';
comment on column execs.lost_with is 'Of a lost exec: what ended before the exec''s own end was known. Else null.';
comment on column execs.output_bytes is 'How much output it has had, as its host last reported.';
comment on column execs.waits is 'Its input is open and nobody is attached, as its host last reported. Never set without input.';
