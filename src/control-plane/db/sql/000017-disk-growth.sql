-- What became of the last increase of the disk's size: the guest's root file system has it, or gets it at the next boot.
alter table disks add column growth text check (growth in ('done', 'next_boot'));
