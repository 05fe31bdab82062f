-- expand
-- The request that asked last for the VM's state, or for the flush, and its span: {"request_id", "traceparent"}.
alter table vms add column trace_context jsonb;
alter table flushes add column trace_context jsonb;
