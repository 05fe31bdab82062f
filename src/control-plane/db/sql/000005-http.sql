create table idempotency_keys (
  org_id      text not null references organisations on delete cascade,
  principal   text not null,
  route       text not null,
  key         text not null,
  fingerprint bytea not null,
  status      integer not null,
  response    bytea not null,
  expires_at  timestamptz not null,
  primary key (org_id, principal, route, key)
);
create index idempotency_keys_expiry on idempotency_keys (expires_at);
comment on table idempotency_keys is 'Responses of successful requests, for requests that repeat their Idempotency-Key.';
comment on column idempotency_keys.principal is 'The id of the account, API key or service account that sent the request.';
comment on column idempotency_keys.route is 'Method and path pattern of the route.';
comment on column idempotency_keys.key is 'The request''s Idempotency-Key.';
comment on column idempotency_keys.fingerprint is 'SHA-256 of the canonical request, to refuse another request with the same key.';
comment on column idempotency_keys.status is 'The HTTP status of the response.';
comment on column idempotency_keys.response is 'The body of the response, encrypted.';

create unlogged table request_counts (
  key    text primary key,
  points integer not null default 0,
  expire bigint
);
comment on table request_counts is 'Requests of each address to the routes that take a password or a token, counted over all control planes. Columns and their order are those of rate-limiter-flexible, which also removes expired rows. Unlogged: a crash of the database may lose the counts.';
comment on column request_counts.key is 'The limit and the address that it counts.';
comment on column request_counts.points is 'Requests in the present window.';
comment on column request_counts.expire is 'When the window ends, in milliseconds since 1970.';
