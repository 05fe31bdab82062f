create table audit_heads (
  org_id text primary key,
  seq    bigint not null,
  mac    bytea not null
);

create table audit_log (
  org_id     text not null,
  -- Null: not sealed yet.
  seq        bigint,
  id         text not null,
  at         timestamptz not null,
  actor      text not null,
  action     text not null,
  target     text,
  ip         text,
  request_id text,
  data       jsonb not null,
  mac        bytea not null,
  serial     bigint not null generated always as identity,
  primary key (org_id, id)
);
create index audit_log_action on audit_log (org_id, action, id);
create index audit_log_actor on audit_log (org_id, actor, id);
create index audit_log_target on audit_log (org_id, target, id);
create unique index audit_log_place on audit_log (org_id, seq) where seq is not null;
create index audit_log_unsealed on audit_log (serial) where seq is null;
