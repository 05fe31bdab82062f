-- GET /v1/audit filtered by action, by actor or by both: the newest matches, without reading the rest of the log.
create index audit_log_action on audit_log (org_id, action, id);
create index audit_log_actor on audit_log (org_id, actor, id);
