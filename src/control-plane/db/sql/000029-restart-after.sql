-- expand
-- When a failed VM may be started again by itself: null, it was not looked at yet; infinity, never.
alter table vms add column restart_after timestamptz;
