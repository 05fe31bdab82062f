-- An entry is written with its transaction under a MAC of its own, and gets its place in the organisation's chain a
-- moment later: requests do not wait for each other at the chain's head. Until then it has no number. What was
-- chained before stays as it is.
alter table audit_log drop constraint audit_log_pkey;
alter table audit_log drop constraint audit_log_id_key;
alter table audit_log add primary key (id);
alter table audit_log add constraint audit_log_place unique (org_id, seq);
alter table audit_log alter column seq drop not null;
alter table audit_log add column serial bigint generated always as identity;
-- Its own MAC did not fit when it was to be chained: it never will be, and `berth audit verify` names it.
alter table audit_log add column refused boolean not null default false;
create index audit_log_unsealed on audit_log (serial) where seq is null and not refused;
