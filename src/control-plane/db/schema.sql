-- Made by `node test/support/write-schema.ts` from a migrated database. Do not edit.

create table api_keys (
  id text not null,
  org_id text not null,
  user_id text,
  name text not null,
  scope text not null,
  token_hash bytea not null,
  prefix text not null,
  last4 text not null,
  created_at timestamp with time zone not null default now(),
  last_used_at timestamp with time zone,
  expires_at timestamp with time zone,
  service_account_id text,
  allowed_cidrs text[] not null default '{}'::text[],
  previous_hash bytea,
  previous_expires_at timestamp with time zone,
  expiry_told timestamp with time zone,
  created_by_key text,
  parent_key text,
  constraint api_keys_pkey PRIMARY KEY (id),
  constraint api_keys_token_hash_key UNIQUE (token_hash),
  constraint api_keys_org_id_service_account_id_fkey FOREIGN KEY (org_id, service_account_id) REFERENCES service_accounts(org_id, id) ON DELETE CASCADE,
  constraint api_keys_org_id_user_id_fkey FOREIGN KEY (org_id, user_id) REFERENCES memberships(org_id, user_id) ON DELETE CASCADE,
  constraint api_keys_parent_key_fkey FOREIGN KEY (parent_key) REFERENCES api_keys(id) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED,
  constraint api_keys_holder CHECK (((user_id IS NULL) <> (service_account_id IS NULL)))
);

create table audit_heads (
  org_id text not null,
  seq bigint not null,
  mac bytea not null,
  constraint audit_heads_pkey PRIMARY KEY (org_id)
);

create table audit_log (
  org_id text not null,
  seq bigint,
  id text not null,
  at timestamp with time zone not null,
  actor text not null,
  action text not null,
  target text,
  ip text,
  request_id text,
  data jsonb not null,
  mac bytea not null,
  serial bigint not null generated always as identity,
  constraint audit_log_pkey PRIMARY KEY (org_id, id)
);

create table console_tickets (
  ticket_hash bytea not null,
  instance_id text not null,
  org_id text not null,
  credential_kind text not null,
  credential_id text not null,
  expires_at timestamp with time zone not null,
  secret_hash bytea,
  exec_id text,
  constraint console_tickets_pkey PRIMARY KEY (ticket_hash),
  constraint console_tickets_exec_id_fkey FOREIGN KEY (exec_id) REFERENCES execs(id) ON DELETE CASCADE,
  constraint console_tickets_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint console_tickets_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint console_tickets_check CHECK (((credential_kind = 'key'::text) = (secret_hash IS NOT NULL))),
  constraint console_tickets_credential_kind_check CHECK ((credential_kind = ANY (ARRAY['session'::text, 'key'::text])))
);

create table control_planes (
  id text not null,
  url text not null,
  fingerprint text not null,
  started_at timestamp with time zone not null default now(),
  seen_at timestamp with time zone not null default now(),
  constraint control_planes_pkey PRIMARY KEY (id),
  constraint control_planes_id_check CHECK ((id ~ '^[0-9a-f]{12}$'::text))
);

create table data_keys (
  instance_id text not null,
  key_id text not null,
  wrapped bytea not null,
  created_at timestamp with time zone not null default now(),
  use text not null,
  used boolean not null default false,
  until_generation bigint,
  constraint data_keys_pkey PRIMARY KEY (instance_id, key_id),
  constraint data_keys_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint data_keys_use_check CHECK ((use = ANY (ARRAY['disk'::text, 'memory'::text, 'reading'::text])))
);

create table deleted_instances (
  instance_id text not null,
  deleted_at timestamp with time zone not null default now(),
  constraint deleted_instances_pkey PRIMARY KEY (instance_id)
);

create table denied_destinations (
  instance_id text not null,
  destination text not null,
  port integer not null,
  name text,
  address text,
  at timestamp with time zone not null,
  attempts bigint not null,
  event_at timestamp with time zone,
  constraint denied_destinations_pkey PRIMARY KEY (instance_id, destination, port),
  constraint denied_destinations_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

create table device_logins (
  device_hash bytea not null,
  user_code text not null,
  sudo boolean not null,
  ip text not null,
  user_agent text not null,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  confirmed_by text,
  constraint device_logins_pkey PRIMARY KEY (device_hash),
  constraint device_logins_user_code_key UNIQUE (user_code),
  constraint device_logins_confirmed_by_fkey FOREIGN KEY (confirmed_by) REFERENCES sessions(id) ON DELETE CASCADE
);

create table disks (
  instance_id text not null,
  size_bytes bigint not null,
  image_version text,
  generation bigint not null default 0,
  epoch bigint not null default 0,
  durable_at timestamp with time zone,
  stored_bytes bigint not null default 0,
  dirty_bytes bigint not null default 0,
  nearly_full boolean not null default false,
  boot_order integer[] not null default '{}'::integer[],
  holds_more boolean not null default false,
  compacting_until timestamp with time zone,
  commit_id uuid not null default gen_random_uuid(),
  growth text,
  constraint disks_pkey PRIMARY KEY (instance_id),
  constraint disks_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint disks_boot_order_check CHECK ((cardinality(boot_order) <= 4096)),
  constraint disks_growth_check CHECK ((growth = ANY (ARRAY['done'::text, 'next_boot'::text])))
);

create table event_head (
  one boolean not null default true,
  position bigint not null default 0,
  constraint event_head_pkey PRIMARY KEY (one),
  constraint event_head_one_check CHECK (one)
);

create table events (
  id text not null,
  org_id text,
  instance_id text,
  sequence bigint,
  type text not null,
  data jsonb not null,
  actor text not null,
  created_at timestamp with time zone not null default now(),
  serial bigint not null generated always as identity,
  position bigint,
  user_id text,
  constraint events_pkey PRIMARY KEY (id),
  constraint events_owner CHECK (((org_id IS NOT NULL) OR (user_id IS NOT NULL)))
);

create table execs (
  id text not null,
  instance_id text not null,
  host_id text not null,
  command text[] not null,
  tty boolean not null,
  stdin boolean not null,
  state text not null default 'starting'::text,
  exit_code integer,
  signal integer,
  timed_out boolean not null default false,
  lost_with text,
  output_bytes bigint not null default 0,
  waits boolean not null default false,
  started_at timestamp with time zone not null default now(),
  ended_at timestamp with time zone,
  constraint execs_pkey PRIMARY KEY (id),
  constraint execs_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint execs_check CHECK (((ended_at IS NULL) = (state = ANY (ARRAY['starting'::text, 'running'::text])))),
  constraint execs_check1 CHECK (((exit_code IS NULL) OR (signal IS NULL))),
  constraint execs_check2 CHECK (((lost_with IS NOT NULL) = (state = 'lost'::text))),
  constraint execs_lost_with_check CHECK ((lost_with = ANY (ARRAY['boot'::text, 'supervisor'::text]))),
  constraint execs_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'exited'::text, 'lost'::text])))
);

create table flushes (
  id text not null,
  instance_id text not null,
  vm_id text not null,
  requested_by text not null,
  state text not null,
  requested_at timestamp with time zone not null default now(),
  finished_at timestamp with time zone,
  receipt jsonb,
  error jsonb,
  trace_context jsonb,
  constraint flushes_pkey PRIMARY KEY (id),
  constraint flushes_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint flushes_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'done'::text, 'failed'::text])))
);

create table free_ssh_ports (
  port integer not null,
  quarantined_at timestamp with time zone,
  host text not null default '127.0.0.1'::text,
  constraint free_ssh_ports_pkey PRIMARY KEY (host, port)
);

create table generations (
  instance_id text not null,
  generation bigint not null,
  epoch bigint not null,
  created_at timestamp with time zone not null default now(),
  bytes bigint not null,
  consistency text not null,
  trigger text not null default 'request'::text,
  origin jsonb,
  dirty_bytes bigint,
  segment_count integer,
  duration_ms bigint,
  segments jsonb not null,
  parent bigint,
  map jsonb,
  name text,
  pinned boolean not null default false,
  retained boolean not null default true,
  commit_id uuid not null default gen_random_uuid(),
  constraint generations_pkey PRIMARY KEY (instance_id, generation),
  constraint generations_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES disks(instance_id) ON DELETE CASCADE,
  constraint generations_parent_fkey FOREIGN KEY (instance_id, parent) REFERENCES generations(instance_id, generation),
  constraint generations_consistency_check CHECK ((consistency = ANY (ARRAY['filesystem'::text, 'crash'::text, 'offline'::text]))),
  constraint generations_parent CHECK ((parent < generation)),
  constraint generations_trigger_check CHECK ((trigger = ANY (ARRAY['request'::text, 'auto'::text, 'stop'::text, 'suspend'::text, 'import'::text, 'fork'::text, 'restore'::text])))
);

create table host_org_use (
  host_id text not null,
  org_id text not null,
  vms integer not null default 0,
  constraint host_org_use_pkey PRIMARY KEY (host_id, org_id),
  constraint host_org_use_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE,
  constraint host_org_use_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE
);

create table host_slots (
  host_id text not null,
  slot integer not null,
  instance_id text not null,
  constraint host_slots_pkey PRIMARY KEY (host_id, slot),
  constraint host_slots_host_id_instance_id_key UNIQUE (host_id, instance_id),
  constraint host_slots_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE,
  constraint host_slots_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint host_slots_slot_check CHECK (((slot >= 1) AND (slot <= 65535)))
);

create table host_use (
  host_id text not null,
  vms integer not null default 0,
  memory_mib bigint not null default 0,
  constraint host_use_pkey PRIMARY KEY (host_id),
  constraint host_use_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE
);

create table hosts (
  id text not null,
  name text not null,
  token_hash bytea not null,
  created_at timestamp with time zone not null default now(),
  last_seen_at timestamp with time zone,
  facts jsonb,
  beat bigint not null default 0,
  lease_ms integer,
  lost_at timestamp with time zone,
  remote boolean not null default false,
  draining boolean not null default false,
  removed_at timestamp with time zone,
  cpus integer,
  memory_mib integer,
  protocol integer,
  labels jsonb not null default '{}'::jsonb,
  taints text[] not null default '{}'::text[],
  cordoned boolean not null default false,
  drain_vms integer,
  join_hash bytea,
  join_expires_at timestamp with time zone,
  next_token_hash bytea,
  credential_since timestamp with time zone not null default now(),
  rotate_requested boolean not null default false,
  constraint hosts_pkey PRIMARY KEY (id),
  constraint hosts_join_hash_key UNIQUE (join_hash),
  constraint hosts_next_token_hash_key UNIQUE (next_token_hash),
  constraint hosts_token_hash_key UNIQUE (token_hash),
  constraint hosts_cpus_check CHECK ((cpus > 0)),
  constraint hosts_lease_ms_check CHECK ((lease_ms > 0)),
  constraint hosts_memory_mib_check CHECK ((memory_mib > 0))
);

create table http_cookies (
  cookie_hash bytea not null,
  port_id text not null,
  hostname text not null,
  session_id text not null,
  org_id text not null,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  constraint http_cookies_pkey PRIMARY KEY (cookie_hash),
  constraint http_cookies_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint http_cookies_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE,
  constraint http_cookies_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

create table http_hostnames (
  port_id text not null,
  hostname text not null,
  proof text not null,
  active_at timestamp with time zone,
  checked_at timestamp with time zone,
  problem text,
  next_check_at timestamp with time zone not null default now(),
  created_at timestamp with time zone not null default now(),
  constraint http_hostnames_pkey PRIMARY KEY (port_id, hostname),
  constraint http_hostnames_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE
);

create table http_labels (
  label text not null,
  constraint http_labels_pkey PRIMARY KEY (label)
);

create table http_port_use (
  port_id text not null,
  minute timestamp with time zone not null,
  requests bigint not null,
  previous_requests bigint not null,
  sent_bytes bigint not null default 0,
  received_bytes bigint not null default 0,
  last_error jsonb,
  constraint http_port_use_pkey PRIMARY KEY (port_id),
  constraint http_port_use_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE
);

create table http_ports (
  id text not null,
  instance_id text not null,
  label text not null,
  port integer not null,
  access text not null,
  version bigint not null default 1,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  constraint http_ports_pkey PRIMARY KEY (id),
  constraint http_ports_label_key UNIQUE (label),
  constraint http_ports_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint http_ports_label_fkey FOREIGN KEY (label) REFERENCES http_labels(label),
  constraint http_ports_access_check CHECK ((access = ANY (ARRAY['private'::text, 'public'::text]))),
  constraint http_ports_port_check CHECK (((port >= 1) AND (port <= 65535)))
);

create table http_tickets (
  ticket_hash bytea not null,
  port_id text not null,
  hostname text not null,
  session_id text not null,
  org_id text not null,
  expires_at timestamp with time zone not null,
  constraint http_tickets_pkey PRIMARY KEY (ticket_hash),
  constraint http_tickets_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint http_tickets_port_id_fkey FOREIGN KEY (port_id) REFERENCES http_ports(id) ON DELETE CASCADE,
  constraint http_tickets_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

create table idempotency_keys (
  org_id text not null,
  principal text not null,
  route text not null,
  key text not null,
  fingerprint bytea not null,
  status integer not null,
  response bytea not null,
  expires_at timestamp with time zone not null,
  constraint idempotency_keys_pkey PRIMARY KEY (org_id, principal, route, key),
  constraint idempotency_keys_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE
);

create table identities (
  issuer text not null,
  subject text not null,
  user_id text not null,
  refresh_token bytea,
  checked_at timestamp with time zone not null default now(),
  claimed_until timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  constraint identities_pkey PRIMARY KEY (issuer, subject),
  constraint identities_issuer_user_id_key UNIQUE (issuer, user_id),
  constraint identities_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table image_versions (
  image_id text not null,
  version text not null,
  recipe text not null,
  index_sha256 text not null,
  size_bytes bigint not null,
  stored_bytes bigint not null,
  current boolean not null default false,
  removed_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  constraint image_versions_pkey PRIMARY KEY (image_id, version),
  constraint image_versions_index_sha256_check CHECK ((index_sha256 ~ '^[0-9a-f]{64}$'::text)),
  constraint image_versions_version_check CHECK ((version ~ '^[0-9a-f]{64}$'::text))
);

create table ingress_watch (
  one boolean not null default true,
  since timestamp with time zone not null,
  reported_at timestamp with time zone not null,
  constraint ingress_watch_pkey PRIMARY KEY (one),
  constraint ingress_watch_one_check CHECK (one)
);

create table ingresses (
  id text not null,
  name text not null,
  token_hash bytea not null,
  host_id text,
  created_at timestamp with time zone not null default now(),
  protocol integer,
  watching_since timestamp with time zone,
  reported_at timestamp with time zone,
  constraint ingresses_pkey PRIMARY KEY (id),
  constraint ingresses_name_key UNIQUE (name),
  constraint ingresses_token_hash_key UNIQUE (token_hash),
  constraint ingresses_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id) ON DELETE CASCADE
);

create table installation (
  only_one boolean not null default true,
  hosts_certificate text,
  hosts_key bytea,
  root_key bytea not null,
  new_root_key bytea,
  next_certificate text,
  next_key bytea,
  next_told_at timestamp with time zone,
  next_told_seconds real not null default 0,
  constraint installation_pkey PRIMARY KEY (only_one),
  constraint installation_check CHECK (((hosts_certificate IS NULL) = (hosts_key IS NULL))),
  constraint installation_check1 CHECK (((next_certificate IS NULL) = (next_key IS NULL))),
  constraint installation_only_one_check CHECK (only_one)
);

create table instance_authorities (
  instance_id text not null,
  certificate text not null,
  private_key bytea not null,
  created_at timestamp with time zone not null default now(),
  constraint instance_authorities_pkey PRIMARY KEY (instance_id),
  constraint instance_authorities_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

create table instance_ssh_keys (
  instance_id text not null,
  ssh_key_id text not null,
  constraint instance_ssh_keys_pkey PRIMARY KEY (instance_id, ssh_key_id),
  constraint instance_ssh_keys_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint instance_ssh_keys_ssh_key_id_fkey FOREIGN KEY (ssh_key_id) REFERENCES ssh_keys(id) ON DELETE CASCADE
);

create table instances (
  id text not null,
  org_id text not null,
  created_by text not null,
  name text not null,
  image text not null,
  cpus integer not null,
  memory_mib integer not null,
  disk_gib integer not null,
  labels jsonb not null default '{}'::jsonb,
  idle_timeout_seconds integer,
  wake_on_connect boolean not null default false,
  auto_flush_seconds integer,
  ssh_port integer not null,
  ssh_host text not null default '127.0.0.1'::text,
  host_keys jsonb,
  ssh_key_mode text not null default 'account'::text,
  deleting boolean not null default false,
  version bigint not null default 1,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  event_sequence bigint not null default 0,
  keep_last integer not null default 24,
  keep_daily_days integer not null default 14,
  forked_from jsonb,
  egress_mode text not null default 'open'::text,
  egress_allow text[] not null default '{}'::text[],
  restart text not null default 'never'::text,
  host_labels jsonb not null default '{}'::jsonb,
  tolerations text[] not null default '{}'::text[],
  constraint instances_pkey PRIMARY KEY (id),
  constraint instances_org_id_name_key UNIQUE (org_id, name),
  constraint instances_ssh_address UNIQUE (ssh_host, ssh_port),
  constraint instances_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id),
  constraint instances_egress_mode_check CHECK ((egress_mode = ANY (ARRAY['open'::text, 'deny'::text, 'allow'::text]))),
  constraint instances_restart_check CHECK ((restart = ANY (ARRAY['never'::text, 'on_failure'::text]))),
  constraint instances_ssh_key_mode_check CHECK ((ssh_key_mode = ANY (ARRAY['account'::text, 'explicit'::text])))
);

create table invitations (
  id text not null,
  org_id text not null,
  email text not null,
  role text not null,
  token_hash bytea not null,
  invited_by text not null,
  created_at timestamp with time zone not null default now(),
  expires_at timestamp with time zone not null,
  constraint invitations_pkey PRIMARY KEY (id),
  constraint invitations_token_hash_key UNIQUE (token_hash),
  constraint invitations_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint invitations_role_check CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'billing'::text])))
);

create table known_places (
  user_id text not null,
  place_hash bytea not null,
  last_seen_at timestamp with time zone not null default now(),
  constraint known_places_pkey PRIMARY KEY (user_id, place_hash),
  constraint known_places_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table lockouts (
  email_key text not null,
  failures integer not null default 0,
  locks integer not null default 0,
  locked_until timestamp with time zone,
  updated_at timestamp with time zone not null default now(),
  constraint lockouts_pkey PRIMARY KEY (email_key)
);

create table mail_counts (
  address text not null,
  kind text not null,
  sent_at timestamp with time zone[] not null,
  constraint mail_counts_pkey PRIMARY KEY (address, kind)
);

create table mail_tokens (
  token_hash bytea not null,
  kind text not null,
  user_id text not null,
  email text,
  expires_at timestamp with time zone not null,
  constraint mail_tokens_pkey PRIMARY KEY (token_hash),
  constraint mail_tokens_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint mail_tokens_kind_check CHECK ((kind = ANY (ARRAY['password_reset'::text, 'confirm_email'::text])))
);

create table mails (
  id text not null,
  kind text not null,
  user_id text,
  sealed bytea not null,
  attempts integer not null default 0,
  due_at timestamp with time zone not null default now(),
  good_until timestamp with time zone not null,
  constraint mails_pkey PRIMARY KEY (id),
  constraint mails_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table memberships (
  org_id text not null,
  user_id text not null,
  role text not null,
  created_at timestamp with time zone not null default now(),
  by_groups boolean not null default false,
  constraint memberships_pkey PRIMARY KEY (org_id, user_id),
  constraint memberships_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE,
  constraint memberships_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint memberships_role_check CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'member'::text, 'billing'::text])))
);

create table memory_images (
  key text not null,
  instance_id text not null,
  vm_id text,
  ref jsonb not null,
  created_at timestamp with time zone not null default now(),
  constraint memory_images_pkey PRIMARY KEY (key),
  constraint memory_images_vm_id_key UNIQUE (vm_id),
  constraint memory_images_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

create table metric_samples (
  instance_id text not null,
  at timestamp with time zone not null,
  seconds integer not null,
  minutes smallint not null,
  means real[] not null,
  mins real[] not null,
  maxs real[] not null,
  constraint metric_samples_pkey PRIMARY KEY (instance_id, at),
  constraint metric_samples_seconds_check CHECK ((seconds = ANY (ARRAY[60, 3600])))
);

create table mfa_factors (
  id text not null,
  user_id text not null,
  type text not null,
  name text not null,
  secret bytea,
  credential jsonb,
  last_step bigint,
  confirmed_at timestamp with time zone,
  created_at timestamp with time zone not null default now(),
  last_used_at timestamp with time zone,
  constraint mfa_factors_pkey PRIMARY KEY (id),
  constraint mfa_factors_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint mfa_factors_type_check CHECK ((type = ANY (ARRAY['totp'::text, 'webauthn'::text])))
);

create table notification_preferences (
  user_id text not null,
  kind text not null,
  mail boolean not null,
  constraint notification_preferences_pkey PRIMARY KEY (user_id, kind),
  constraint notification_preferences_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table notifications (
  id text not null,
  recipient text not null,
  kind text not null,
  title text not null,
  body text not null,
  resource_type text,
  resource_id text,
  data jsonb not null,
  count bigint not null,
  position bigint not null,
  event_id text not null,
  created_at timestamp with time zone not null,
  raised_at timestamp with time zone not null,
  read_at timestamp with time zone,
  org_id text,
  mail_after timestamp with time zone,
  constraint notifications_pkey PRIMARY KEY (recipient, id)
);

create table object_readers (
  id uuid not null,
  until timestamp with time zone not null,
  constraint object_readers_pkey PRIMARY KEY (id)
);

create table object_stores (
  only_one boolean not null default true,
  id text not null,
  marked_at timestamp with time zone,
  constraint object_stores_pkey PRIMARY KEY (only_one),
  constraint object_stores_only_one_check CHECK (only_one)
);

create table object_writers (
  id uuid not null,
  instance_id text not null,
  since timestamp with time zone not null default now(),
  constraint object_writers_pkey PRIMARY KEY (id),
  constraint object_writers_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

create table open_streams (
  org_id text not null,
  control_plane text not null,
  count integer not null,
  seen_at timestamp with time zone not null default now(),
  constraint open_streams_pkey PRIMARY KEY (org_id, control_plane)
);

create table organisations (
  id text not null,
  name text not null,
  billing_email text not null,
  created_at timestamp with time zone not null default now(),
  quotas jsonb not null default '{}'::jsonb,
  created_by text,
  operator boolean not null default false,
  constraint organisations_pkey PRIMARY KEY (id)
);

create table recovery_codes (
  user_id text not null,
  code_hash bytea not null,
  constraint recovery_codes_pkey PRIMARY KEY (user_id, code_hash),
  constraint recovery_codes_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table replaced_refresh_tokens (
  token_hash bytea not null,
  session_id text not null,
  replaced_at timestamp with time zone not null default clock_timestamp(),
  constraint replaced_refresh_tokens_pkey PRIMARY KEY (token_hash),
  constraint replaced_refresh_tokens_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

create table request_counts (
  key text not null,
  points integer not null default 0,
  expire bigint,
  constraint request_counts_pkey PRIMARY KEY (key)
);

create table schema_migrations (
  name text not null,
  sha256 text not null,
  applied_at timestamp with time zone not null default now(),
  needs text,
  constraint schema_migrations_pkey PRIMARY KEY (name)
);

create table secrets (
  serial bigint not null generated always as identity,
  instance_id text not null,
  name text not null,
  hosts text[] not null,
  placeholder text not null,
  value bytea,
  updated_at timestamp with time zone not null default now(),
  constraint secrets_pkey PRIMARY KEY (serial),
  constraint secrets_instance_id_name_key UNIQUE (instance_id, name),
  constraint secrets_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE
);

create table secrets_authority (
  only_one boolean not null default true,
  certificate text not null,
  private_key bytea not null,
  created_at timestamp with time zone not null default now(),
  constraint secrets_authority_pkey PRIMARY KEY (only_one),
  constraint secrets_authority_only_one_check CHECK (only_one)
);

create table segment_holders (
  key text not null,
  instance_id text not null,
  constraint segment_holders_pkey PRIMARY KEY (key, instance_id),
  constraint segment_holders_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint segment_holders_key_fkey FOREIGN KEY (key) REFERENCES segments(key)
);

create table segments (
  key text not null,
  size_bytes bigint not null,
  entries integer not null,
  created_at timestamp with time zone not null default now(),
  unheld_at timestamp with time zone,
  constraint segments_pkey PRIMARY KEY (key)
);

create table service_accounts (
  id text not null,
  org_id text not null,
  name text not null,
  scope text not null,
  created_by text not null,
  created_at timestamp with time zone not null default now(),
  constraint service_accounts_pkey PRIMARY KEY (id),
  constraint service_accounts_of_org UNIQUE (org_id, id),
  constraint service_accounts_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE CASCADE
);

create table session_tokens (
  token_hash bytea not null,
  session_id text not null,
  expires_at timestamp with time zone not null,
  constraint session_tokens_pkey PRIMARY KEY (token_hash),
  constraint session_tokens_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE
);

create table sessions (
  id text not null,
  user_id text not null,
  ip text not null,
  user_agent text not null,
  created_at timestamp with time zone not null default now(),
  last_seen_at timestamp with time zone not null default now(),
  ends_at timestamp with time zone not null,
  refresh_family bytea,
  refresh_hash bytea,
  constraint sessions_pkey PRIMARY KEY (id),
  constraint sessions_refresh_family_key UNIQUE (refresh_family),
  constraint sessions_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table ssh_keys (
  id text not null,
  user_id text not null,
  name text not null,
  type text not null,
  fingerprint text not null,
  public_key text not null,
  created_at timestamp with time zone not null default now(),
  last_used_at timestamp with time zone,
  org_id text,
  parent_key text,
  constraint ssh_keys_pkey PRIMARY KEY (id),
  constraint ssh_keys_user_id_fingerprint_key UNIQUE (user_id, fingerprint),
  constraint ssh_keys_org_id_user_id_fkey FOREIGN KEY (org_id, user_id) REFERENCES memberships(org_id, user_id) ON DELETE CASCADE,
  constraint ssh_keys_parent_key_fkey FOREIGN KEY (parent_key) REFERENCES api_keys(id) ON DELETE SET NULL,
  constraint ssh_keys_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table sudo_grants (
  token_hash bytea not null,
  session_id text not null,
  user_id text not null,
  expires_at timestamp with time zone not null,
  constraint sudo_grants_pkey PRIMARY KEY (token_hash),
  constraint sudo_grants_session_id_fkey FOREIGN KEY (session_id) REFERENCES sessions(id) ON DELETE CASCADE,
  constraint sudo_grants_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE
);

create table usage_clock (
  one boolean not null default true,
  counted_until timestamp with time zone not null default now(),
  stored_until timestamp with time zone not null default now(),
  constraint usage_clock_pkey PRIMARY KEY (one),
  constraint usage_clock_one_check CHECK (one)
);

create table usage_hours (
  instance_id text not null,
  org_id text not null,
  hour timestamp with time zone not null,
  running_seconds double precision not null default 0,
  cpu_seconds double precision not null default 0,
  memory_mib_seconds double precision not null default 0,
  stored_byte_seconds double precision not null default 0,
  flushed_bytes bigint not null default 0,
  http_bytes bigint not null default 0,
  constraint usage_hours_pkey PRIMARY KEY (instance_id, hour)
);

create table user_data (
  instance_id text not null,
  script text not null,
  given boolean not null default false,
  constraint user_data_pkey PRIMARY KEY (instance_id),
  constraint user_data_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint user_data_script_check CHECK ((octet_length(script) <= 65536))
);

create table users (
  id text not null,
  email text not null,
  email_key text not null,
  name text not null,
  password_hash text,
  created_at timestamp with time zone not null default now(),
  email_confirmed boolean not null default false,
  constraint users_pkey PRIMARY KEY (id),
  constraint users_email_key_key UNIQUE (email_key)
);

create table vms (
  id text not null,
  instance_id text not null,
  boot integer not null,
  epoch bigint not null,
  host_id text not null,
  desired text not null,
  state text not null,
  force boolean not null default false,
  reboots integer not null default 0,
  reason_code text,
  reason_message text,
  reason_actor text,
  released boolean not null default false,
  ssh_address text,
  started_at timestamp with time zone,
  stopped_at timestamp with time zone,
  deadline_at timestamp with time zone,
  version bigint not null default 1,
  applied_keys jsonb,
  active_at timestamp with time zone,
  suspended_at timestamp with time zone,
  generation bigint not null default 0,
  commit_id uuid,
  resets integer not null default 0,
  guest_ran boolean not null default false,
  restarted_at timestamp with time zone,
  move text,
  move_problem text,
  move_after timestamp with time zone,
  trace_context jsonb,
  restart_after timestamp with time zone,
  constraint vms_pkey PRIMARY KEY (id),
  constraint vms_instance_id_boot_key UNIQUE (instance_id, boot),
  constraint vms_host_id_fkey FOREIGN KEY (host_id) REFERENCES hosts(id),
  constraint vms_instance_id_fkey FOREIGN KEY (instance_id) REFERENCES instances(id) ON DELETE CASCADE,
  constraint vms_desired_check CHECK ((desired = ANY (ARRAY['running'::text, 'suspended'::text, 'stopped'::text]))),
  constraint vms_move_check CHECK ((move = ANY (ARRAY['suspend'::text, 'stop'::text]))),
  constraint vms_state_check CHECK ((state = ANY (ARRAY['starting'::text, 'running'::text, 'restarting'::text, 'suspending'::text, 'suspended'::text, 'stopping'::text, 'stopped'::text, 'failed'::text])))
);

create table webauthn_challenges (
  challenge text not null,
  user_id text,
  purpose text not null,
  expires_at timestamp with time zone not null,
  constraint webauthn_challenges_pkey PRIMARY KEY (challenge),
  constraint webauthn_challenges_user_id_fkey FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE,
  constraint webauthn_challenges_purpose_check CHECK ((purpose = ANY (ARRAY['register'::text, 'login'::text])))
);

create table webhook_attempts (
  delivery_id text not null,
  number integer not null,
  at timestamp with time zone not null,
  url text not null,
  status smallint,
  latency_ms integer not null,
  error text,
  response_headers jsonb not null,
  response text not null,
  constraint webhook_attempts_pkey PRIMARY KEY (delivery_id, number)
);

create table webhook_deliveries (
  id text not null,
  webhook_id text not null,
  event_id text not null,
  position bigint not null,
  instance_id text,
  state text not null default 'pending'::text,
  in_order boolean not null default true,
  attempts integer not null default 0,
  tries smallint not null default 0,
  next_attempt_at timestamp with time zone default now(),
  created_at timestamp with time zone not null default now(),
  constraint webhook_deliveries_pkey PRIMARY KEY (id),
  constraint webhook_deliveries_webhook_id_position_key UNIQUE (webhook_id, "position"),
  constraint webhook_deliveries_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])))
);

create table webhook_leases (
  webhook_id text not null,
  owner text not null,
  until timestamp with time zone not null,
  woken boolean not null default false,
  constraint webhook_leases_pkey PRIMARY KEY (webhook_id)
);

create table webhooks (
  id text not null,
  org_id text,
  name text not null,
  url text not null,
  events text[] not null,
  status text not null default 'enabled'::text,
  disabled_reason text,
  disabled_at timestamp with time zone,
  secret bytea not null,
  previous_secret bytea,
  previous_expires_at timestamp with time zone,
  failing_since timestamp with time zone,
  failing_told boolean not null default false,
  version bigint not null default 1,
  created_by text not null,
  created_at timestamp with time zone not null default now(),
  updated_at timestamp with time zone not null default now(),
  proven_at timestamp with time zone,
  constraint webhooks_pkey PRIMARY KEY (id),
  constraint webhooks_org_id_fkey FOREIGN KEY (org_id) REFERENCES organisations(id) ON DELETE SET NULL,
  constraint webhooks_check CHECK (((status = 'disabled'::text) = (disabled_reason IS NOT NULL))),
  constraint webhooks_disabled_reason_check CHECK ((disabled_reason = ANY (ARRAY['requested'::text, 'gone'::text, 'failing'::text]))),
  constraint webhooks_status_check CHECK ((status = ANY (ARRAY['enabled'::text, 'disabled'::text])))
);

CREATE INDEX api_keys_expiry ON public.api_keys USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX api_keys_page ON public.api_keys USING btree (org_id, user_id, id DESC);
CREATE INDEX api_keys_parent ON public.api_keys USING btree (parent_key) WHERE (parent_key IS NOT NULL);
CREATE UNIQUE INDEX api_keys_previous_hash ON public.api_keys USING btree (previous_hash) WHERE (previous_hash IS NOT NULL);
CREATE INDEX api_keys_service_account ON public.api_keys USING btree (service_account_id, id DESC) WHERE (service_account_id IS NOT NULL);
CREATE INDEX audit_log_action ON public.audit_log USING btree (org_id, action, id);
CREATE INDEX audit_log_actor ON public.audit_log USING btree (org_id, actor, id);
CREATE UNIQUE INDEX audit_log_place ON public.audit_log USING btree (org_id, seq) WHERE (seq IS NOT NULL);
CREATE INDEX audit_log_target ON public.audit_log USING btree (org_id, target, id);
CREATE INDEX audit_log_unsealed ON public.audit_log USING btree (serial) WHERE (seq IS NULL);
CREATE INDEX console_tickets_instance ON public.console_tickets USING btree (instance_id);
CREATE UNIQUE INDEX data_keys_in_use ON public.data_keys USING btree (instance_id, use) WHERE (use = ANY (ARRAY['disk'::text, 'memory'::text]));
CREATE INDEX denied_destinations_newest ON public.denied_destinations USING btree (instance_id, at DESC);
CREATE INDEX device_logins_confirmed ON public.device_logins USING btree (confirmed_by);
CREATE INDEX device_logins_expiry ON public.device_logins USING btree (expires_at);
CREATE INDEX disks_image_version ON public.disks USING btree (image_version);
CREATE INDEX events_actor ON public.events USING btree (org_id, actor, "position" DESC) WHERE (actor > 'i'::text);
CREATE INDEX events_age ON public.events USING brin (created_at);
CREATE INDEX events_beside_flushes ON public.events USING btree (org_id, type, "position" DESC) WHERE (type <> 'disk.flushed'::text);
CREATE INDEX events_forks ON public.events USING btree ((((data -> 'forked_from'::text) ->> 'instance_id'::text)), "position" DESC) WHERE (type = 'instance.forked'::text);
CREATE INDEX events_instance ON public.events USING btree (instance_id, "position" DESC) WHERE (instance_id IS NOT NULL);
CREATE INDEX events_page ON public.events USING btree (org_id, "position" DESC);
CREATE UNIQUE INDEX events_sequence ON public.events USING btree (instance_id, sequence) WHERE (instance_id IS NOT NULL);
CREATE INDEX events_waiting ON public.events USING btree (serial) WHERE ("position" IS NULL);
CREATE INDEX execs_instance ON public.execs USING btree (instance_id, id);
CREATE INDEX execs_running ON public.execs USING btree (instance_id) WHERE (state = ANY (ARRAY['starting'::text, 'running'::text]));
CREATE INDEX flushes_finished ON public.flushes USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX flushes_instance ON public.flushes USING btree (instance_id);
CREATE UNIQUE INDEX flushes_queued ON public.flushes USING btree (instance_id) WHERE (state = 'queued'::text);
CREATE UNIQUE INDEX flushes_running ON public.flushes USING btree (instance_id) WHERE (state = 'running'::text);
CREATE INDEX free_ssh_ports_order ON public.free_ssh_ports USING btree (quarantined_at NULLS FIRST, port, host);
CREATE INDEX generations_dropped ON public.generations USING btree (instance_id) WHERE (NOT retained);
CREATE INDEX host_org_use_org ON public.host_org_use USING btree (org_id);
CREATE INDEX host_slots_instance ON public.host_slots USING btree (instance_id);
CREATE UNIQUE INDEX hosts_name ON public.hosts USING btree (name) WHERE (removed_at IS NULL);
CREATE INDEX http_cookies_port ON public.http_cookies USING btree (port_id);
CREATE INDEX http_cookies_session ON public.http_cookies USING btree (session_id, port_id, created_at);
CREATE UNIQUE INDEX http_hostnames_active ON public.http_hostnames USING btree (hostname) WHERE (active_at IS NOT NULL);
CREATE INDEX http_hostnames_due ON public.http_hostnames USING btree (next_check_at);
CREATE INDEX http_ports_page ON public.http_ports USING btree (instance_id, id DESC);
CREATE INDEX idempotency_keys_expiry ON public.idempotency_keys USING btree (expires_at);
CREATE INDEX identities_due ON public.identities USING btree (checked_at) WHERE (refresh_token IS NOT NULL);
CREATE INDEX identities_user ON public.identities USING btree (user_id);
CREATE UNIQUE INDEX image_versions_current ON public.image_versions USING btree (image_id) WHERE current;
CREATE INDEX instance_ssh_keys_key ON public.instance_ssh_keys USING btree (ssh_key_id);
CREATE INDEX instances_deleting ON public.instances USING btree (id) WHERE deleting;
CREATE INDEX instances_image ON public.instances USING btree (image);
CREATE INDEX instances_maker ON public.instances USING btree (created_by);
CREATE INDEX instances_page ON public.instances USING btree (org_id, id DESC);
CREATE INDEX instances_restart ON public.instances USING btree (id) WHERE (restart <> 'never'::text);
CREATE INDEX invitations_page ON public.invitations USING btree (org_id, id DESC);
CREATE INDEX mail_tokens_user ON public.mail_tokens USING btree (user_id);
CREATE INDEX mails_due ON public.mails USING btree (due_at);
CREATE INDEX mails_user ON public.mails USING btree (user_id, kind) WHERE (user_id IS NOT NULL);
CREATE INDEX memberships_user ON public.memberships USING btree (user_id, created_at);
CREATE INDEX memory_images_instance ON public.memory_images USING btree (instance_id);
CREATE UNIQUE INDEX mfa_factors_credential ON public.mfa_factors USING btree (((credential ->> 'id'::text))) WHERE (credential IS NOT NULL);
CREATE INDEX mfa_factors_user ON public.mfa_factors USING btree (user_id);
CREATE INDEX notifications_age ON public.notifications USING brin (created_at);
CREATE INDEX notifications_mail ON public.notifications USING btree (mail_after) WHERE (mail_after IS NOT NULL);
CREATE INDEX notifications_repeats ON public.notifications USING btree ((((((recipient || ' '::text) || kind) || ' '::text) || COALESCE(resource_id, ''::text))), id DESC) WHERE ((read_at IS NULL) AND (kind <> 'api_key.created'::text));
CREATE INDEX notifications_stream ON public.notifications USING btree (recipient, "position");
CREATE INDEX notifications_unread ON public.notifications USING btree (recipient, id DESC) WHERE (read_at IS NULL);
CREATE INDEX object_writers_instance ON public.object_writers USING btree (instance_id);
CREATE INDEX open_streams_control_plane ON public.open_streams USING btree (control_plane);
CREATE INDEX organisations_maker ON public.organisations USING btree (created_by);
CREATE UNIQUE INDEX organisations_operator ON public.organisations USING btree (operator) WHERE operator;
CREATE INDEX replaced_refresh_tokens_session ON public.replaced_refresh_tokens USING btree (session_id);
CREATE INDEX segment_holders_instance ON public.segment_holders USING btree (instance_id);
CREATE INDEX segments_unheld ON public.segments USING btree (unheld_at) WHERE (unheld_at IS NOT NULL);
CREATE INDEX service_accounts_page ON public.service_accounts USING btree (org_id, id DESC);
CREATE INDEX session_tokens_expiry ON public.session_tokens USING btree (expires_at);
CREATE INDEX session_tokens_session ON public.session_tokens USING btree (session_id);
CREATE INDEX sessions_end ON public.sessions USING btree (ends_at);
CREATE INDEX sessions_user ON public.sessions USING btree (user_id);
CREATE INDEX ssh_keys_membership ON public.ssh_keys USING btree (org_id, user_id) WHERE (org_id IS NOT NULL);
CREATE INDEX ssh_keys_parent ON public.ssh_keys USING btree (parent_key) WHERE (parent_key IS NOT NULL);
CREATE INDEX sudo_grants_session ON public.sudo_grants USING btree (session_id);
CREATE INDEX sudo_grants_user ON public.sudo_grants USING btree (user_id);
CREATE INDEX usage_hours_old ON public.usage_hours USING btree (hour);
CREATE INDEX usage_hours_page ON public.usage_hours USING btree (org_id, hour DESC, instance_id DESC);
CREATE INDEX vms_deadline ON public.vms USING btree (deadline_at) WHERE (deadline_at IS NOT NULL);
CREATE INDEX vms_failed ON public.vms USING btree (instance_id) WHERE (state = 'failed'::text);
CREATE INDEX vms_host ON public.vms USING btree (host_id) WHERE (state <> 'stopped'::text);
CREATE INDEX vms_moving ON public.vms USING btree (instance_id) WHERE (move IS NOT NULL);
CREATE INDEX vms_stopped_at ON public.vms USING btree (stopped_at);
CREATE INDEX webhook_attempts_at ON public.webhook_attempts USING brin (at);
CREATE INDEX webhook_deliveries_failed ON public.webhook_deliveries USING btree (webhook_id, "position") WHERE (state = 'failed'::text);
CREATE INDEX webhook_deliveries_in_order ON public.webhook_deliveries USING btree (webhook_id, "position") WHERE ((state = 'pending'::text) AND in_order);
CREATE INDEX webhook_deliveries_retries ON public.webhook_deliveries USING btree (webhook_id, next_attempt_at) WHERE ((state = 'pending'::text) AND (NOT in_order));
CREATE INDEX webhooks_page ON public.webhooks USING btree (org_id, id DESC);
