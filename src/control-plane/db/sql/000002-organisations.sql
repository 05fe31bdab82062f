create table organisations (
  id            text primary key,
  name          text not null,
  billing_email text not null,
  quotas        jsonb not null default '{}',
  operator      boolean not null default false,
  created_by    text,
  created_at    timestamptz not null default now()
);
create unique index organisations_operator on organisations (operator) where operator;
create index organisations_creator on organisations (created_by);
comment on table organisations is 'What owns instances, keys and webhooks, and what its members share.';
comment on column organisations.billing_email is 'The address for bills.';
comment on column organisations.quotas is 'The organisation''s own quotas, such as {"instances": 50, "cpus": null}; null is unlimited. A missing quota has the default of the settings.';
comment on column organisations.operator is 'The first administrator''s organisation: its owners and admins see the whole installation. No other one ever becomes it.';
comment on column organisations.created_by is 'The account that created it and counts it in its quota. Null: no account did.';

create table memberships (
  org_id     text not null references organisations on delete cascade,
  user_id    text not null references users on delete cascade,
  role       text not null check (role in ('owner', 'admin', 'member', 'billing')),
  by_groups  boolean not null default false,
  created_at timestamptz not null default now(),
  primary key (org_id, user_id)
);
create index memberships_user on memberships (user_id, created_at);
comment on table memberships is 'Members of organisations.';
comment on column memberships.role is 'What the member may do (docs/permissions.md).';
comment on column memberships.by_groups is 'The groups of the OpenID provider decide the role, and whether the membership exists.';

create table invitations (
  id         text primary key,
  org_id     text not null references organisations on delete cascade,
  email      text not null,
  role       text not null check (role in ('owner', 'admin', 'member', 'billing')),
  token_hash bytea not null unique,
  invited_by text not null,
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);
create index invitations_page on invitations (org_id, id desc);
comment on table invitations is 'Invitations that were not accepted yet.';
comment on column invitations.email is 'The address that the invitation was sent to.';
comment on column invitations.role is 'The role of the new member.';
comment on column invitations.token_hash is 'SHA-256 of the invitation''s token.';
comment on column invitations.invited_by is 'The account that invited.';

create unlogged table open_streams (
  org_id        text not null,
  control_plane text not null,
  count         integer not null,
  seen_at       timestamptz not null default now(),
  primary key (org_id, control_plane)
);
create index open_streams_control_plane on open_streams (control_plane);
comment on table open_streams is 'How many event streams, notification streams and consoles each organisation has open at each control plane. Unlogged: a crash of the database may lose the counts.';
comment on column open_streams.control_plane is 'The id of the control plane''s process, which is new at each start.';
comment on column open_streams.count is 'How many streams are open.';
comment on column open_streams.seen_at is 'The control plane renews it every 2 s. Rows that are older than 6 s do not count.';
