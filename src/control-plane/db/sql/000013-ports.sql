create table http_labels (
  label text primary key
);
comment on table http_labels is 'Every label that a port''s hostname ever began with. Rows are never deleted, so no label is given twice.';
comment on column http_labels.label is 'The first label of a hostname.';

create table http_ports (
  id          text primary key,
  instance_id text not null references instances on delete cascade,
  label       text not null unique references http_labels,
  port        integer not null check (port between 1 and 65535),
  access      text not null check (access in ('private', 'public')),
  version     bigint not null default 1,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now()
);
create index http_ports_page on http_ports (instance_id, id desc);
comment on table http_ports is 'Ports in guests that the ingress serves under a hostname.';
comment on column http_ports.label is 'The first label of its hostname; BERTH_HTTP_DOMAIN is the rest.';
comment on column http_ports.port is 'The port in the guest.';
comment on column http_ports.access is 'Who may use it: members of the organisation, or everybody.';
comment on column http_ports.version is 'Incremented by each change of the port or of its hostnames. It is the ETag.';

create table http_port_use (
  port_id           text primary key references http_ports on delete cascade,
  minute            timestamptz not null,
  requests          bigint not null,
  previous_requests bigint not null,
  sent_bytes        bigint not null default 0,
  received_bytes    bigint not null default 0,
  last_error        jsonb
);
comment on table http_port_use is 'What ingresses reported of each port. A table of its own, because it changes every few seconds.';
comment on column http_port_use.minute is 'The beginning of the last minute with a report.';
comment on column http_port_use.requests is 'Requests in that minute.';
comment on column http_port_use.previous_requests is 'Requests in the minute before.';
comment on column http_port_use.sent_bytes is 'Bytes to clients, in total.';
comment on column http_port_use.received_bytes is 'Bytes from clients, in total.';
comment on column http_port_use.last_error is 'The newest answer of Berth instead of the guest: {at, code, message}. Null: there was none.';

create table http_hostnames (
  port_id       text not null references http_ports on delete cascade,
  hostname      text not null,
  proof         text not null,
  active_at     timestamptz,
  checked_at    timestamptz,
  problem       text,
  next_check_at timestamptz not null default now(),
  created_at    timestamptz not null default now(),
  primary key (port_id, hostname)
);
create unique index http_hostnames_active on http_hostnames (hostname) where active_at is not null;
create index http_hostnames_due on http_hostnames (next_check_at);
comment on table http_hostnames is 'Hostnames of users. Several ports may wait for a hostname; one has it, while the TXT record is found.';
comment on column http_hostnames.hostname is 'The hostname, in lower case.';
comment on column http_hostnames.proof is 'The value that the TXT record must have.';
comment on column http_hostnames.active_at is 'Since when the port has had the hostname. Null: it waits for the TXT record.';
comment on column http_hostnames.checked_at is 'When the TXT record was last looked up. Null: not yet.';
comment on column http_hostnames.problem is 'Why the last look-up found no record. Null: it did, or there was none.';
comment on column http_hostnames.next_check_at is 'When the TXT record is looked up next.';

create table http_tickets (
  ticket_hash bytea primary key,
  port_id     text not null references http_ports on delete cascade,
  hostname    text not null,
  session_id  text not null references sessions on delete cascade,
  org_id      text not null references organisations on delete cascade,
  expires_at  timestamptz not null
);
comment on table http_tickets is 'One-time tickets that open a private port in a browser.';
comment on column http_tickets.ticket_hash is 'SHA-256 of the ticket.';
comment on column http_tickets.hostname is 'The hostname that the browser opens.';
comment on column http_tickets.session_id is 'The session that asked for it, with which access ends.';

create table http_cookies (
  cookie_hash bytea primary key,
  port_id     text not null references http_ports on delete cascade,
  hostname    text not null,
  session_id  text not null references sessions on delete cascade,
  org_id      text not null references organisations on delete cascade,
  created_at  timestamptz not null default now(),
  expires_at  timestamptz not null
);
create index http_cookies_session on http_cookies (session_id, port_id, created_at);
create index http_cookies_port on http_cookies (port_id);
comment on table http_cookies is 'Cookies of browsers that redeemed a ticket, each for one hostname.';
comment on column http_cookies.cookie_hash is 'SHA-256 of the cookie''s value.';
comment on column http_cookies.hostname is 'The hostname that the cookie is for.';
comment on column http_cookies.session_id is 'The session that asked for the ticket, with which access ends.';
