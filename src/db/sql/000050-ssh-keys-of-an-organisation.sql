-- An SSH key that an API key has registered grants access to instances of that API key's organisation only, and ends
-- with the membership of its owner there. Null: it grants access everywhere that its owner's keys do.
alter table ssh_keys add column org_id text;
alter table ssh_keys add foreign key (org_id, user_id) references memberships (org_id, user_id) on delete cascade;
create index ssh_keys_membership on ssh_keys (org_id, user_id) where org_id is not null;
