-- What was set for an organisation: {"instances": 50, "cpus": null}. null is unlimited; a quota that is not named is the default, a setting.
alter table organisations add column quotas jsonb not null default '{}';
update organisations set quotas = jsonb_strip_nulls(jsonb_build_object(
  'instances', quota_instances, 'cpus', quota_cpus, 'memory_mib', quota_memory_mib, 'disk_gib', quota_disk_gib));
alter table organisations drop column quota_instances;
alter table organisations drop column quota_cpus;
alter table organisations drop column quota_memory_mib;
alter table organisations drop column quota_disk_gib;
-- The first administrator's.
update organisations set quotas = '{"instances": null, "cpus": null, "memory_mib": null, "disk_gib": null,
  "api_keys": null, "service_accounts": null, "webhooks": null, "streams": null}'
where id = (select min(id) from organisations);
-- The account that made it.
alter table organisations add column created_by text;
update organisations o set created_by = (
  select user_id from memberships m where m.org_id = o.id and m.role = 'owner' order by m.created_at limit 1);
create index organisations_maker on organisations (created_by);
