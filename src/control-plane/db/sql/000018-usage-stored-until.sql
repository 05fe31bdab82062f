-- Until when stored bytes are counted. What is stored since then, a reader adds.
alter table usage_clock add column stored_until timestamptz not null default now();
update usage_clock set stored_until = counted_until;
