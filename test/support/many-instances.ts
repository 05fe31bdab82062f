/**
 * Fills a migrated database like that of an installation with 20,000 instances on 200 hosts. One organisation has three
 * quarters of the instances, and 50 others share the rest; 500 VMs run. Plain SQL without the checks of foreign keys
 * does it in seconds.
 */
import { queryOnce } from './database.ts';
import { FACTS } from './scripted-agent.ts';

export const INSTANCES = 20_000;
export const HOSTS = 200;
/** The names of SSH addresses, and the ports; instances have every second address. */
export const SSH = { hosts: ['127.64.0.1', '127.64.0.2'], first_port: 10_000, last_port: 29_999 };

/** The id that this module gives: `large` ids are digits, so every id that is made later is newer. */
export function numbered(prefix: string, n: number): string {
  return `${prefix}_${String(n).padStart(26, '0')}`;
}
/** The organisation with most instances. */
export const LARGE_ORG = numbered('org', 0);

const of = (prefix: string, n: string) => `'${prefix}_' || lpad((${n})::text, 26, '0')`;
const HOST = `n / 40 % ${HOSTS}`;
const ORG = `case when n % 4 < 3 then 0 else 1 + n % 50 end`;
const STATE = `case when n % 40 = 0 then 'running' when n % 400 = 1 then 'failed' when n % 400 = 2 then 'suspended'
  else 'stopped' end`;
const KEY = `'disks/' || ${of('inst', 'n')} || '/seg/1/' || g`;
/** Such as `decode(md5(…))`: 32 bytes that differ. */
const bytes = (text: string) => `sha256((${text})::bytea)`;
const numbers = (count: number, name = 'n') => `generate_series(0, ${count - 1}) as ${name}`;

const PEOPLE = `
insert into organisations (id, name, billing_email)
  select ${of('org', 'n')}, 'Org ' || n, 'o@example.org' from ${numbers(51)};
insert into users (id, email, email_key, name) select ${of('usr', 'n')}, n || '@e.org', n || '@e.org', 'U' from ${numbers(1_000)};
insert into memberships (org_id, user_id, role)
  select ${of('org', 'case when n < 500 then 0 else 1 + n % 50 end')}, ${of('usr', 'n')}, 'member' from ${numbers(1_000)};
insert into ssh_keys (id, user_id, name, type, fingerprint, public_key)
  select ${of('key', 'n')}, ${of('usr', 'n % 1000')}, 'k', 'ssh-ed25519', 'SHA256:' || lpad(n::text, 43, 'a'), 'ssh-ed25519 A'
  from ${numbers(2_000)};
insert into sessions (id, user_id, ip, user_agent, ends_at)
  select ${of('sess', 'n')}, ${of('usr', 'n % 1000')}, '127.0.0.1', 'test', now() + interval '1 day' from ${numbers(5_000)};
insert into session_tokens (token_hash, session_id, expires_at)
  select ${bytes(`'t' || n`)}, ${of('sess', 'n')}, now() + interval '1 hour' from ${numbers(5_000)};
insert into idempotency_keys (org_id, principal, route, key, fingerprint, status, response, expires_at)
  select ${of('org', '0')}, ${of('usr', 'n % 1000')}, 'POST /v1/instances', 'k' || n, '', 201, '', now() + interval '1 day'
  from ${numbers(20_000)};
insert into notifications (recipient, id, kind, title, body, data, count, position, event_id, created_at, raised_at, org_id, read_at)
  select ${of('usr', 'n % 1000')}, ${of('ntf', 'n')}, 'vm.failed', 't', 'b', '{}', 1, n, ${of('evt', 'n')}, now(), now(),
    ${of('org', '0')}, now() from ${numbers(20_000)};`;

const PLACES = `
insert into hosts (id, name, token_hash, last_seen_at, facts, remote, cpus, memory_mib, lease_ms)
  select ${of('host', 'n')}, 'host-' || n, ${bytes(`'h' || n`)}, now() + interval '1 day', '${JSON.stringify(FACTS)}', true, 64,
    262144, 40000 from ${numbers(HOSTS)};
insert into free_ssh_ports (host, port)
  select host, port from unnest(array['${SSH.hosts.join("','")}']) as host, generate_series(10001, 29999, 2) as port;
insert into instances (id, org_id, created_by, name, image, cpus, memory_mib, disk_gib, labels, idle_timeout_seconds,
    auto_flush_seconds, ssh_port, ssh_host, restart, event_sequence, created_at)
  select ${of('inst', 'n')}, ${of('org', ORG)}, ${of('usr', 'n % 1000')}, 'i' || n, 'debian-12', 2, 1024, 8,
    jsonb_build_object('group', 'g' || n % 50), 3600, 60, 10000 + n / 2 * 2, (array['${SSH.hosts.join("','")}'])[1 + n % 2],
    case when n % 10 = 0 then 'on_failure' else 'never' end, 3, now() - interval '10 days' from ${numbers(INSTANCES)};
insert into disks (instance_id, size_bytes, image_version, generation, epoch, durable_at, stored_bytes)
  select ${of('inst', 'n')}, 8589934592, repeat('a', 64), 2, 2, now() - interval '1 minute', 100000000 from ${numbers(INSTANCES)};
insert into data_keys (instance_id, key_id, wrapped, use)
  select ${of('inst', 'n')}, 'dk_' || lpad(n::text, 32, '0'), '', 'disk' from ${numbers(INSTANCES)};
insert into vms (id, instance_id, boot, epoch, host_id, desired, state, started_at, stopped_at, active_at, ssh_address)
  select ${of('vm', '2 * n + boot')}, ${of('inst', 'n')}, boot, boot, ${of('host', HOST)},
    case when state in ('running', 'suspended') and boot = 2 then state else 'stopped' end,
    case boot when 2 then state else 'stopped' end, now() - interval '5 days',
    case when boot = 2 and state = 'running' then null else now() - interval '4 days' end, now(),
    case when boot = 2 and state = 'running' then '127.0.0.1:1' end
  from (select n, ${STATE} as state from ${numbers(INSTANCES)}) as i, generate_series(1, 2) as boot;
insert into host_slots (host_id, slot, instance_id)
  select ${of('host', HOST)}, 1 + n % 40 + 40 * (n / 8000), ${of('inst', 'n')} from ${numbers(INSTANCES)};
insert into host_use (host_id, vms, memory_mib)
  select host_id, count(*), 1024 * count(*) from vms where state = 'running' group by host_id;
insert into host_org_use (host_id, org_id, vms)
  select v.host_id, i.org_id, count(*) from vms v join instances i on i.id = v.instance_id where v.state = 'running'
  group by v.host_id, i.org_id;`;

const HISTORY = `
insert into generations (instance_id, generation, epoch, created_at, bytes, consistency, segments, parent)
  select ${of('inst', 'n')}, g, 1, now() - g * interval '1 hour', 1000, 'filesystem',
    jsonb_build_array(jsonb_build_object('key', ${KEY}, 'entries', 10)), nullif(g - 1, 0)
  from ${numbers(INSTANCES)}, generate_series(1, 2) as g;
insert into segments (key, size_bytes) select ${KEY}, 1000 from ${numbers(INSTANCES)}, generate_series(1, 2) as g;
insert into segment_holders (key, instance_id)
  select ${KEY}, ${of('inst', 'n')} from ${numbers(INSTANCES)}, generate_series(1, 2) as g;
insert into flushes (id, instance_id, vm_id, requested_by, state, finished_at)
  select ${of('flush', 'n')}, ${of('inst', 'n')}, ${of('vm', '2 * n + 2')}, ${of('usr', '0')}, 'done', now() from ${numbers(INSTANCES)};
insert into execs (id, instance_id, host_id, command, tty, stdin, state, exit_code, ended_at)
  select ${of('exec', 'n')}, ${of('inst', 'n')}, ${of('host', '0')}, '{true}', false, false, 'exited', 0, now()
  from ${numbers(INSTANCES)};
insert into usage_hours (instance_id, org_id, hour, running_seconds)
  select ${of('inst', 'n')}, ${of('org', ORG)}, date_trunc('hour', now(), 'UTC') - h * interval '1 hour', 3600
  from ${numbers(INSTANCES)}, generate_series(0, 1) as h;
insert into metric_samples (instance_id, at, seconds, minutes, means, mins, maxs)
  select ${of('inst', '40 * n')}, date_trunc('minute', now()) - m * interval '1 minute', 60, 1, '{}', '{}', '{}'
  from ${numbers(50)}, generate_series(0, 399) as m;
insert into http_labels (label) select 'web-' || n from ${numbers(2_000)};
insert into http_ports (id, instance_id, label, port, access)
  select ${of('port', 'n')}, ${of('inst', '10 * n')}, 'web-' || n, 80, 'private' from ${numbers(2_000)};
insert into events (id, org_id, instance_id, sequence, type, data, actor, position)
  select ${of('evt', 'e')}, ${of('org', ORG)}, ${of('inst', 'n')}, e / ${INSTANCES} + 1, 'instance.created', '{}', 'system', e + 1
  from (select e, e % ${INSTANCES} as n from ${numbers(60_000, 'e')}) as each;
update event_head set position = 60000;
update usage_clock set counted_until = now() - interval '20 seconds', stored_until = now() - interval '5 minutes';
insert into audit_log (org_id, seq, id, at, actor, action, data, mac)
  select ${of('org', 'n % 51')}, n / 51, ${of('aud', 'n')}, now(), ${of('usr', 'n % 1000')}, 'vm.start', '{}', '\\x00'
  from ${numbers(20_000)};
insert into audit_heads (org_id, seq, mac) select ${of('org', 'n')}, 392, '\\x00' from ${numbers(51)};
insert into webhooks (id, org_id, name, url, events, secret, created_by)
  select ${of('wh', 'n')}, ${of('org', 'n % 51')}, 'w' || n, 'http://127.0.0.1:1', '{*}', '', ${of('usr', '0')} from ${numbers(200)};
insert into webhook_deliveries (id, webhook_id, event_id, position, state, next_attempt_at)
  select replace(${of('whd', 'n')}, '_0', '_7'), ${of('wh', 'n % 200')}, ${of('evt', 'n')}, n, 'delivered', null from ${numbers(20_000)};`;

/** Ends with the statistics that PostgreSQL gathers by itself in a running installation. */
export async function fillWithInstances(url: string): Promise<void> {
  for (const part of [PEOPLE, PLACES, HISTORY]) {
    await queryOnce(url, `set session_replication_role = replica; set synchronous_commit = off; ${part}`);
  }
  await queryOnce(url, 'vacuum analyze');
}
