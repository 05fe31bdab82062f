create table organisations (
  id            text primary key,
  name          text not null,
  billing_email text not null,
  created_at    timestamptz not null default now(),
  -- {"instances": 50, "cpus": null}: null is unlimited. A quota without a name here has the default of the settings.
  quotas        jsonb not null default '{}',
  -- The account that created it.
  created_by    text,
  -- The first administrator's: its owners and admins see the whole installation. No other organisation ever becomes it.
  operator      boolean not null default false
);
create unique index organisations_operator on organisations (operator) where operator;
create index organisations_maker on organisations (created_by);

create table memberships (
  org_id     text not null references organisations on delete cascade,
  user_id    text not null references users on delete cascade,
  role       text not null check (role in ('owner', 'admin', 'member', 'billing')),
  created_at timestamptz not null default now(),
  primary key (org_id, user_id)
);
create index memberships_user on memberships (user_id, created_at);

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

create table service_accounts (
  id         text primary key,
  org_id     text not null references organisations on delete cascade,
  name       text not null,
  scope      text not null,
  created_by text not null,
  created_at timestamptz not null default now(),
  constraint service_accounts_of_org unique (org_id, id)
);
create index service_accounts_page on service_accounts (org_id, id desc);
