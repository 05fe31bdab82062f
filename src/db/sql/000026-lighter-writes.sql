-- What every write pays for, and nothing reads: a membership holds its organisation and its person, a service account its
-- organisation, so a key needs no lock on their rows as well; events of no instance have no number of one; and what is
-- only asked for by age, in the order of its writing, needs no tree for that.

alter table service_accounts add constraint service_accounts_of_org unique (org_id, id);
alter table api_keys
  drop constraint api_keys_org_id_fkey,
  drop constraint api_keys_user_id_fkey,
  drop constraint api_keys_service_account_id_fkey,
  add constraint api_keys_org_id_service_account_id_fkey foreign key (org_id, service_account_id)
    references service_accounts (org_id, id) on delete cascade;

alter table events drop constraint events_instance_id_sequence_key;
create unique index events_sequence on events (instance_id, sequence) where instance_id is not null;

drop index events_age;
create index events_age on events using brin (created_at);
drop index notifications_age;
create index notifications_age on notifications using brin (created_at);
