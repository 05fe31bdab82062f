/**
 * The command `berth doctor`: checks this machine, the server and the connection to it, and prints a remedy for each
 * problem.
 */
import { execFileSync } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import { join } from 'node:path';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { Call, Command } from '../command.ts';
import { configFolder } from '../profiles.ts';
import { isLocal, readSettings, type ServerFacts } from '../server-facts.ts';
import { bytes, plural } from '../table.ts';

interface Finding {
  readonly check: string;
  /** Null: unknown here, which is no failure. */
  readonly ok: boolean | null;
  readonly found: string;
  readonly next?: string;
  /** A weak setting, which is no failure. */
  readonly weak?: true;
}

/** The checks of /readyz. */
interface Part {
  readonly ok: boolean;
  readonly problem?: string;
  readonly accelerators?: readonly string[];
}

const REACH_MS = 15_000;
const MAX_SKEW_MS = 30_000;

async function server({ session }: Call): Promise<Finding[]> {
  const { url } = session;
  const get = (path: string) =>
    fetch(url + path, { signal: AbortSignal.timeout(REACH_MS), redirect: 'error' });
  let ready: Response;
  try {
    ready = await get('/readyz');
  } catch (error) {
    if ((error as Error).name === 'TimeoutError') {
      const next = 'uptime, on the server: it may have too much to do';
      return [{ check: 'server', ok: false, found: `${url} has not answered within 15 s`, next }];
    }
    return [{ check: 'server', ok: false, ...whyNoAnswer(url, error as Error) }];
  }
  const parts = (await ready.json().catch(() => null)) as Record<string, Part | boolean | null> | null;
  if (typeof parts?.['ready'] !== 'boolean') {
    const next = 'berth login --url URL, with the address that “berth ready at” names in the log of Berth';
    return [{ check: 'server', ok: false, found: `${url} answers, but is not a Berth server`, next }];
  }
  const found: Finding[] = [{ check: 'server', ok: true, found: `${url} answers` }];
  const bad = Object.entries(parts).flatMap(([name, part]) =>
    typeof part === 'object' && part !== null && !part.ok ? [`${name}: ${part.problem}`] : [],
  );
  const problem = bad.join('; ') || 'no';
  const is_ready = parts['ready'] === true;
  const next = is_ready
    ? {}
    : { next: 'read the log of Berth: what npm start prints, or journalctl -u berth' };
  found.push({ check: 'ready', ok: is_ready, found: is_ready ? 'yes' : problem, ...next });
  const version = await get('/v1/openapi.json').then(
    async (answer) => ((await answer.json()) as { info?: { version?: string } }).info?.version,
    () => undefined,
  );
  found.push({ check: 'version', ok: version === undefined ? null : true, found: version ?? 'unknown' });
  found.push(skew(ready.headers.get('date')));
  found.push(...(await mail(url)));
  const { accelerators } = (parts['host'] ?? {}) as Part;
  if (accelerators !== undefined) found.push(kvm(accelerators));
  return found;
}

function whyNoAnswer(url: string, error: Error): { readonly found: string; readonly next: string } {
  const code = errnoOf(error.cause);
  if (code === 'ENOTFOUND' || code === 'EAI_AGAIN')
    return {
      found: `the name in ${url} is not found`,
      next: 'berth login --url URL, if the address is wrong',
    };
  if (code?.startsWith('ERR_SSL_') === true)
    return { found: `${url} does not speak TLS`, next: 'the same address with http://' };
  if (isLocal(url)) {
    const next =
      'npm start in the folder of Berth, or berth server; systemctl start berth where it is a package';
    return { found: `${url} does not answer`, next };
  }
  const why = error.cause === undefined || code === 'ECONNREFUSED' ? '' : `: ${messageOf(error.cause)}`;
  return { found: `${url} does not answer${why}`, next: 'berth login --url URL, if the address is wrong' };
}

/** Without a mail server no invitation or password reset arrives, although the server accepts both. */
async function mail(url: string): Promise<Finding[]> {
  const check = 'mail';
  const settings = await readSettings(url);
  if (settings.mail === null) return [];
  if (settings.mail === 'smtp') return [{ check, ok: true, found: 'a mail server is set' }];
  const found = 'no mail server: invitations, password resets and warnings become files on the server';
  const next =
    'BERTH_SMTP_URL=smtp://… on the server; until then pass on the link of berth invitation create, and reset a password with berth user reset-password ADDRESS on the server';
  return [{ check, ok: null, weak: true, found, next }];
}

/** The agents' result with a test guest: /dev/kvm may open and still run none. */
function kvm(accelerators: readonly string[]): Finding {
  const check = 'KVM';
  if (accelerators.every((each) => each === 'kvm')) return { check, ok: true, found: 'VMs run on it' };
  const where = accelerators.includes('kvm')
    ? 'not on every host: some emulate'
    : 'not used: the hosts emulate';
  const next = 'berth host ls, on the server, says which; “accelerator” in the log of Berth there says why';
  return { check, ok: null, found: `${where} their VMs, which is slow`, next };
}

/** A check of this machine's /dev/kvm, without the server. */
function kvmDevice(): Finding {
  const check = 'KVM';
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK);
    return { check, ok: null, found: '/dev/kvm opens; not tried yet whether a guest boots on it' };
  } catch {
    const found = '/dev/kvm cannot be opened: VMs on this machine are emulated, and slow';
    return { check, ok: null, found };
  }
}

function skew(date: string | null): Finding {
  const check = 'clock';
  if (date === null) return { check, ok: null, found: 'the server sends no time' };
  const off_ms = Math.abs(Date.now() - Date.parse(date));
  const ok = off_ms <= MAX_SKEW_MS;
  const found = ok ? 'agrees with the server' : `${Math.round(off_ms / 1_000)} s away from the server's`;
  return ok
    ? { check, ok, found }
    : { check, ok, found, next: 'timedatectl set-ntp true, on the one that is wrong' };
}

async function login({ session }: Call): Promise<Finding[]> {
  try {
    const keys = await session.berth().call('listSshKeys', { query: { limit: 200 } });
    const count = keys.data.length;
    const by_key = session.env['BERTH_API_KEY'] || session.profile === undefined;
    const as = by_key ? 'by BERTH_API_KEY' : `as ${session.profile.email}`;
    const found = count === 0 ? 'none registered' : `${count} registered`;
    return [
      { check: 'login', ok: true, found: as },
      { check: 'SSH key', ok: count > 0, found, ...(count > 0 ? {} : { next: 'berth ssh-key add' }) },
    ];
  } catch (error) {
    return [{ check: 'login', ok: false, found: messageOf(error), next: 'berth login' }];
  }
}

function machine({ session }: Call): Finding[] {
  const found: Finding[] = [];
  try {
    execFileSync('ssh', ['-V'], { stdio: 'ignore' });
    found.push({ check: 'ssh', ok: true, found: 'is installed' });
  } catch {
    const next = 'apt-get install openssh-client';
    found.push({ check: 'ssh', ok: false, found: 'is not installed', next });
  }
  const path = join(configFolder(session.env), 'config.json');
  const mode = statSync(path, { throwIfNoEntry: false })?.mode;
  if (mode !== undefined) {
    const ok = (mode & 0o077) === 0;
    const next = ok ? {} : { next: `chmod 600 ${path}` };
    found.push({
      check: 'login file',
      ok,
      found: ok ? 'only you can read it' : 'other users can read it',
      ...next,
    });
  }
  return found;
}

/** On the server's machine, with access to its data folder. */
async function weaknesses({ session }: Call): Promise<Finding[]> {
  const { askServerFacts } = await import('../server-facts.ts');
  const facts = await askServerFacts(session.env, session.url);
  if (facts === null) {
    // Not on the server's machine: nothing to check.
    if (!isLocal(session.url)) return [];
    const found = 'not checked: the data folder of this server was not found';
    const next = 'BERTH_DATA_DIR=FOLDER berth doctor, as the user who runs the server';
    return [{ check: 'weaknesses', ok: null, found, next }];
  }
  if (facts === 'closed') {
    const next = 'sudo berth doctor, on the server';
    return [
      { check: 'weaknesses', ok: null, found: 'shown only to users who can read the data folder', next },
    ];
  }
  const weak = facts.weaknesses.map((each) => ({ ...each, ok: null, weak: true as const }));
  const none: Finding = { check: 'weaknesses', ok: true, found: 'none found' };
  return [...awaitingRemoval(facts), ...(weak.length === 0 ? [none] : weak)];
}

function awaitingRemoval({ awaiting_removal_bytes, removal_delay_seconds }: ServerFacts): Finding[] {
  if (awaiting_removal_bytes === 0) return [];
  const hours = removal_delay_seconds / 3_600;
  const found = `${bytes(awaiting_removal_bytes)} in object storage are of no use any more; they stay for ${plural(hours, 'hour')}, for a database that is set back`;
  const next = 'berth disk free --older-than 10m, on the server, if you need the room now';
  return [{ check: 'removal', ok: null, found, next }];
}

async function doctor(call: Call): Promise<number> {
  const { terminal } = call;
  const reached = await server(call);
  const tried = reached.some(({ check }) => check === 'KVM') ? [] : [kvmDevice()];
  const answers = reached[0]?.ok === true;
  const findings = [
    ...[...reached, ...tried, ...(answers ? await login(call) : []), ...machine(call)],
    // Each check once: the server's own weaknesses may repeat what it tells everybody.
    ...(answers ? await weaknesses(call) : []).filter(
      ({ check }) => !reached.some((each) => each.check === check),
    ),
  ];
  const sign = ({ ok, weak }: Finding) => (weak ? '!' : ok === null ? '-' : ok ? 'ok' : 'NO');
  if (terminal.format === 'json') terminal.json(findings);
  else if (terminal.format === 'human') {
    for (const finding of findings) {
      const { check, found, next } = finding;
      terminal.say(
        `${sign(finding).padEnd(3)} ${check.padEnd(12)} ${found}${next === undefined ? '' : `\n    next: ${next}`}`,
      );
    }
  }
  return findings.some(({ ok }) => ok === false) ? 1 : 0;
}

export const DOCTOR: Command = {
  name: 'doctor',
  summary: 'check for problems and weak settings, and print a remedy for each',
  example: 'berth doctor',
  run: doctor,
};
