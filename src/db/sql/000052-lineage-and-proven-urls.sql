-- Which API key made an API key, and under which ones that still exist a key hangs: revoking a leaked key can then end all
-- that was made with it. Deferred, so that a backup's rows may come in any order.
alter table api_keys add column created_by_key text;
alter table api_keys add column parent_key text
  references api_keys (id) on delete set null deferrable initially deferred;
create index api_keys_parent on api_keys (parent_key) where parent_key is not null;
alter table ssh_keys add column parent_key text references api_keys (id) on delete set null;
create index ssh_keys_parent on ssh_keys (parent_key) where parent_key is not null;
-- Since when a webhook's present URL has answered 2xx; null: never.
alter table webhooks add column proven_at timestamptz;
