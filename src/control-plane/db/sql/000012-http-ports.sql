-- Every label that a port's hostname ever began with. Rows are never deleted, so no label is assigned again.
create table http_labels (
  label text primary key
);

-- Ports in guests that the ingress serves under a hostname.
create table http_ports (
  id          text primary key,
  instance_id text not null references instances on delete cascade,
  -- The first label of its hostname; BERTH_HTTP_DOMAIN is the rest.
  label       text not null unique references http_labels,
  port        integer not null check (port between 1 and 65535),
  access      text not null check (access in ('private', 'public')),
  -- Incremented by each change of the port or of its hostnames. It is the ETag.
  version     bigint not null default 1,
  created_at  timestamptz not null default now(),
  updated_at  timestamptz not null default now()
);
create index http_ports_page on http_ports (instance_id, id desc);

-- What the ingress reported. Apart from the port, because it changes every few seconds.
create table http_port_use (
  port_id           text primary key references http_ports on delete cascade,
  -- Requests in the minute that begins at `minute`, and in the one before.
  minute            timestamptz not null,
  requests          bigint not null,
  previous_requests bigint not null,
  -- In total: to clients, and from them.
  sent_bytes        bigint not null default 0,
  received_bytes    bigint not null default 0,
  -- {at, code, message}: the newest answer of Berth instead of the guest.
  last_error        jsonb
);

-- Hostnames of the users. One is active while its TXT record is found.
create table http_hostnames (
  port_id       text not null references http_ports on delete cascade,
  hostname      text not null,
  -- The value of the TXT record.
  proof         text not null,
  -- Null: pending.
  active_at     timestamptz,
  -- The last check, and its problem; null: none, or the record was found.
  checked_at    timestamptz,
  problem       text,
  next_check_at timestamptz not null default now(),
  created_at    timestamptz not null default now(),
  primary key (port_id, hostname)
);
-- Several ports may wait for a hostname; one has it.
create unique index http_hostnames_active on http_hostnames (hostname) where active_at is not null;
create index http_hostnames_due on http_hostnames (next_check_at);

-- A ticket opens a private port in a browser once. Access lasts no longer than the session that asked for it.
create table http_tickets (
  ticket_hash bytea primary key,
  port_id     text not null references http_ports on delete cascade,
  hostname    text not null,
  session_id  text not null references sessions on delete cascade,
  org_id      text not null references organisations on delete cascade,
  expires_at  timestamptz not null
);

-- Cookies of browsers that redeemed a ticket, each for one hostname.
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
