-- How often the guest of a boot was reset, by itself or by a restart: the ingress ends the connections from before each.
alter table vms add column resets integer not null default 0;
