-- What an operator says that a host on another machine may be given, and the version of the agent protocol that it last spoke.
alter table hosts
  add column cpus integer check (cpus > 0),
  add column memory_mib integer check (memory_mib > 0),
  add column protocol integer;
