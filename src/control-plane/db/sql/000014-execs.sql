-- Commands in guests that outlive their callers. Their output is on the host.
create table execs (
  id           text primary key,
  instance_id  text not null references instances on delete cascade,
  -- The host that has its output; the newest, if its VM was moved.
  host_id      text not null,
  command      text[] not null,
  tty          boolean not null,
  stdin        boolean not null,
  -- starting: its host has not answered yet; callers do not see it.
  state        text not null default 'starting' check (state in ('starting', 'running', 'exited', 'lost')),
  exit_code    integer,
  signal       integer,
  timed_out    boolean not null default false,
  -- What had ended before the end of a lost exec was known.
  lost_with    text check (lost_with in ('boot', 'supervisor')),
  output_bytes bigint not null default 0,
  -- Its host says that its input is open and nobody is attached; of one without input it says nothing.
  waits        boolean not null default false,
  started_at   timestamptz not null default now(),
  ended_at     timestamptz,
  check ((ended_at is null) = (state in ('starting', 'running'))),
  check (exit_code is null or signal is null),
  check ((lost_with is not null) = (state = 'lost'))
);
create index execs_instance on execs (instance_id, id);
create index execs_running on execs (instance_id) where state in ('starting', 'running');

-- Null: the ticket is for the console.
alter table console_tickets add column exec_id text references execs on delete cascade;
