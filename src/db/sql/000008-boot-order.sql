-- Blocks in the order in which the last lazily started boot read them first: the next such start fetches them ahead.
alter table disks
  add column boot_order integer[] not null default '{}'
    check (cardinality(boot_order) <= 4096);
