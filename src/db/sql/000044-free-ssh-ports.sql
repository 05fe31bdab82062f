-- The SSH ports that no instance has. The control plane adds those of its range at its start.
create table free_ssh_ports (
  port integer primary key,
  -- When the last instance that ran at this port was deleted; null: none ran.
  quarantined_at timestamptz
);
-- The order in which ports are taken.
create index free_ssh_ports_order on free_ssh_ports (quarantined_at nulls first, port);
insert into free_ssh_ports (port, quarantined_at)
  select port, until - interval '1 day' from resting_ports
  where port not in (select ssh_port from instances);
drop table resting_ports;
