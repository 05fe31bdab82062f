create table audit_heads (
  org_id text primary key,
  seq    bigint not null,
  mac    bytea not null
);
comment on table audit_heads is 'The last link of each organisation''s chain of audit entries.';
comment on column audit_heads.seq is 'The number of the last entry in the chain.';
comment on column audit_heads.mac is 'The MAC of the last entry in the chain.';

create table audit_log (
  org_id     text not null,
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
create unique index audit_log_sequence on audit_log (org_id, seq) where seq is not null;
create index audit_log_unsealed on audit_log (serial) where seq is null;
comment on table audit_log is 'Who did what, when and from where. Without foreign keys: entries outlive everything that they name. A task adds new entries to their organisation''s chain.';
comment on column audit_log.seq is 'The entry''s number in the chain. Null: it is not in the chain yet.';
comment on column audit_log.at is 'When it happened.';
comment on column audit_log.actor is 'The id of the principal, or "system".';
comment on column audit_log.action is 'What was done, such as "api_key.revoked".';
comment on column audit_log.target is 'The id of what it was done to. Null: nothing in particular.';
comment on column audit_log.ip is 'The address of the client. Null: no request caused it.';
comment on column audit_log.request_id is 'The X-Request-Id of the request. Null: no request caused it.';
comment on column audit_log.data is 'Details of the action.';
comment on column audit_log.mac is 'Before the entry is in the chain: a MAC of the entry alone. Then: a MAC of the entry and of the MAC before it.';
comment on column audit_log.serial is 'The order of the inserts, in which entries are added to the chain.';
