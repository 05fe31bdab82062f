/**
 * Replaces systemctl and journalctl in a machine of a test, which has no systemd: `node systemctl.ts systemctl start
 * NAME…`.
 *
 * - It reads the unit files that systemd would read, and starts a unit with its settings, credentials, folders, user,
 *   capabilities and limits.
 * - It restarts no service that ends, builds no sandbox, and does not wait for a service to report that it is ready.
 */
import { spawn, spawnSync } from 'node:child_process';
import {
  chownSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { hostname } from 'node:os';
import { dirname, join } from 'node:path';
import { isAlive } from '../../src/launcher/run-command.ts';
import { until } from './waiting.ts';

const OWN_UNITS = '/etc/systemd/system';
const UNITS = [OWN_UNITS, '/lib/systemd/system'];
const STATE = '/run/test-systemctl';
const LOGS = '/var/log/test-journal';
/** Of each unit with `DynamicUser=`. */
const DYNAMIC_USER = 61_200;
const STOP_MS = 90_000;

class Unit {
  readonly name: string;
  readonly #values: readonly (readonly [key: string, value: string])[];

  private constructor(name: string, texts: readonly string[]) {
    this.name = name;
    this.#values = texts.flatMap((text) =>
      [...text.matchAll(/^([A-Z]\w+)=(.*)$/gm)].map(([, key = '', value = '']) => [key, value] as const),
    );
  }

  /** Null: there is no such unit. */
  static read(name: string): Unit | null {
    const path = UNITS.map((folder) => join(folder, `${name}.service`)).find(existsSync);
    if (path === undefined) return null;
    const more = join(OWN_UNITS, `${name}.service.d`);
    const changes = existsSync(more) ? readdirSync(more).map((file) => join(more, file)) : [];
    return new Unit(
      name,
      [path, ...changes].map((each) => readFileSync(each, 'utf8')),
    );
  }

  /** Its values in the order of the files, with specifiers replaced; an empty one takes back those before it. */
  all(key: string): string[] {
    const values = this.#values.filter(([each]) => each === key).map(([, value]) => value);
    const specifiers: Record<string, string> = {
      d: this.credentials,
      H: hostname(),
      p: this.name,
      n: this.name,
    };
    return values
      .slice(values.lastIndexOf('') + 1)
      .map((value) =>
        value.replaceAll(/%([a-zA-Z])/g, (whole, letter: string) => specifiers[letter] ?? whole),
      );
  }
  one(key: string): string | undefined {
    return this.all(key).at(-1);
  }

  get credentials(): string {
    return `/run/credentials/${this.name}.service`;
  }
  get log(): string {
    return join(LOGS, this.name);
  }
  get pid(): number | undefined {
    const path = join(STATE, this.name);
    const pid = existsSync(path) ? Number(readFileSync(path, 'utf8')) : 0;
    return pid !== 0 && isAlive(pid) ? pid : undefined;
  }
}

/** Words as systemd splits them. */
function wordsIn(text: string): string[] {
  return [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map(
    (found) => found[1] ?? found[2] ?? found[3] ?? '',
  );
}

function assignment(text: string): [string, string][] {
  const at = text.indexOf('=');
  if (at < 1 || /^[#;]/.test(text)) return [];
  const value = text.slice(at + 1).trim();
  return [[text.slice(0, at), /^(["']).*\1$/.test(value) ? value.slice(1, -1) : value]];
}

function environmentOf(unit: Unit): Record<string, string> {
  const written = unit.all('Environment').flatMap(wordsIn).flatMap(assignment);
  const files = unit.all('EnvironmentFile').flatMap((path) => {
    const is_optional = path.startsWith('-');
    const at = is_optional ? path.slice(1) : path;
    return is_optional && !existsSync(at) ? [] : readFileSync(at, 'utf8').split('\n').flatMap(assignment);
  });
  const path = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin';
  return {
    PATH: path,
    LANG: 'C.UTF-8',
    HOME: '/',
    JOURNAL_STREAM: '1:1',
    ...Object.fromEntries([...written, ...files]),
  };
}

function idsOf(user: string): [uid: number, gid: number] {
  const [, , uid, gid] = readFileSync('/etc/passwd', 'utf8')
    .split('\n')
    .map((line) => line.split(':'))
    .find(([name]) => name === user) ?? ['', '', '0', '0'];
  return [Number(uid), Number(gid)];
}

/** The folders and credentials of a unit, as its user's. */
function makeFolders(unit: Unit, [uid, gid]: readonly [number, number]): void {
  for (const folder of unit.all('StateDirectory')) {
    const path = join('/var/lib', folder);
    mkdirSync(path, { recursive: true, mode: Number.parseInt(unit.one('StateDirectoryMode') ?? '755', 8) });
    chownSync(path, uid, gid);
  }
  const credentials = unit.all('LoadCredential').map((each) => each.split(':'));
  if (credentials.length === 0) return;
  mkdirSync(dirname(unit.credentials), { recursive: true });
  mkdirSync(unit.credentials, { recursive: true, mode: 0o500 });
  chownSync(unit.credentials, uid, gid);
  for (const [id = '', from = ''] of credentials) {
    const path = join(unit.credentials, id);
    rmSync(path, { force: true });
    copyFileSync(from, path);
    chownSync(path, uid, gid);
  }
}

/** What makes a process of the unit's user, capabilities and limits of a process of root. */
function prefixOf(unit: Unit, [uid, gid]: readonly [number, number]): string[] {
  // A limit of this machine's may be lower.
  const files = unit.one('LimitNOFILE');
  const limit = files === undefined ? '' : `ulimit -n ${files} 2> /dev/null || :;`;
  const shell = ['sh', '-c', `umask ${unit.one('UMask') ?? '0022'}; ${limit} exec "$@"`, 'sh'];
  if (uid === 0) return shell;
  const user = unit.one('User');
  const groups = user === undefined ? '--clear-groups' : '--init-groups';
  const capabilities = unit.all('AmbientCapabilities').flatMap(wordsIn);
  const kept = capabilities.map((each) => `+${each.replace('CAP_', '').toLowerCase()}`).join();
  const ambient = kept === '' ? [] : [`--inh-caps=${kept}`, `--ambient-caps=${kept}`];
  return ['setpriv', `--reuid=${uid}`, `--regid=${gid}`, groups, ...ambient, ...shell];
}

/** A command line of the unit, with variables replaced: a lone one may become several words or none. */
function commandIn(line: string, env: Record<string, string>): string[] {
  return wordsIn(line.replace(/^[-@:+!]+/, '')).flatMap((word) => {
    const [, name] = /^\$(\w+)$/.exec(word) ?? [];
    if (name !== undefined) return wordsIn(env[name] ?? '');
    return [word.replaceAll(/\$\{(\w+)\}/g, (_, each: string) => env[each] ?? '')];
  });
}

function fail(text: string): never {
  process.stderr.write(`${text}\n`);
  process.exit(1);
}

function start(unit: Unit): void {
  if (unit.pid !== undefined) return;
  const wanted = unit.one('ConditionPathExists');
  if (wanted !== undefined && !existsSync(wanted)) return;
  const user = unit.one('User');
  const is_dynamic = unit.one('DynamicUser') === 'yes';
  const ids = is_dynamic ? ([DYNAMIC_USER, DYNAMIC_USER] as const) : idsOf(user ?? 'root');
  makeFolders(unit, ids);
  const env = environmentOf(unit);
  const [program = '', ...words] = [
    ...prefixOf(unit, ids),
    ...commandIn(unit.one('ExecStart') ?? fail(`${unit.name} has no ExecStart=`), env),
  ];
  mkdirSync(LOGS, { recursive: true });
  mkdirSync(STATE, { recursive: true });
  const out = openSync(unit.log, 'a');
  const stdio: ['ignore', number, number] = ['ignore', out, out];
  const cwd = unit.one('WorkingDirectory') ?? '/';
  if (unit.one('Type') === 'oneshot') {
    const { status } = spawnSync(program, words, { env, cwd, stdio });
    if (status !== 0) fail(`Job for ${unit.name}.service failed.\n${readFileSync(unit.log, 'utf8')}`);
    return;
  }
  const child = spawn(program, words, { env, cwd, stdio, detached: true });
  writeFileSync(join(STATE, unit.name), String(child.pid));
  child.unref();
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended.
  }
}

async function stop(unit: Unit): Promise<void> {
  const { pid } = unit;
  if (pid === undefined) return;
  const is_one = unit.one('KillMode') === 'process' || unit.one('KillMode') === 'mixed';
  signal(is_one ? pid : -pid, 'SIGTERM');
  await until(`${unit.name} has ended`, () => unit.pid === undefined, { timeout_ms: STOP_MS });
  if (unit.one('KillMode') !== 'process') signal(-pid, 'SIGKILL');
}

function reload(unit: Unit): void {
  if (unit.pid === undefined) fail(`${unit.name}.service is not active, cannot reload.`);
  const env = { ...environmentOf(unit), MAINPID: String(unit.pid) };
  for (const line of unit.all('ExecReload')) {
    const [program = '', ...words] = commandIn(line, env);
    const { status } = spawnSync(program, words, { env, stdio: 'inherit' });
    if (status !== 0) fail(`Job for ${unit.name}.service failed.`);
  }
}

function mask(name: string): void {
  mkdirSync(OWN_UNITS, { recursive: true });
  symlinkSync('/dev/null', join(OWN_UNITS, `${name}.service`));
}

function isMasked(name: string): boolean {
  try {
    return readlinkSync(join(OWN_UNITS, `${name}.service`)) === '/dev/null';
  } catch {
    return false;
  }
}

async function systemctl(words: readonly string[]): Promise<void> {
  const [verb = '', ...names] = words.filter((word) => !word.startsWith('-'));
  if (verb === 'daemon-reload') return;
  const runs = words.includes('--now') || ['start', 'stop', 'restart', 'reload', 'is-active'].includes(verb);
  for (const name of names.map((each) => each.replace(/\.service$/, ''))) {
    if (verb === 'mask') mask(name);
    if (!runs) continue;
    if (verb !== 'disable' && isMasked(name)) fail(`Failed to ${verb} ${name}.service: Unit is masked.`);
    const unit = Unit.read(name);
    // `disable --now` of what has never been started.
    if (unit === null && verb === 'disable') continue;
    if (unit === null) fail(`Unit ${name}.service not found.`);
    if (verb === 'is-active' && unit.pid === undefined) fail('inactive');
    if (verb === 'reload') reload(unit);
    if (['stop', 'restart', 'disable'].includes(verb)) await stop(unit);
    if (['start', 'restart', 'enable'].includes(verb)) start(unit);
  }
}

/** `-u NAME -n LINES` */
function journalctl(words: readonly string[]): void {
  const after = (option: string) => words[words.indexOf(option) + 1] ?? '';
  const lines = readFileSync(join(LOGS, after('-u')), 'utf8')
    .trimEnd()
    .split('\n');
  process.stdout.write(`${lines.slice(-Number(after('-n'))).join('\n')}\n`);
}

const [program, ...words] = process.argv.slice(2);
if (program === 'journalctl') journalctl(words);
else await systemctl(words);
