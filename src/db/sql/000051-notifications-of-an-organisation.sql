-- An API key sees what concerns its creator's account (null) or its own organisation, and nothing of another one.
alter table notifications add column org_id text;
update notifications set org_id = data ->> 'org_id' where kind <> 'ssh_key.added';
