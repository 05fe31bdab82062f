/**
 * Opens SSH sessions to guests with OpenSSH, which trusts only the host keys that the API tells. `berth up` first logs
 * in and creates an SSH key and the instance, where these are missing. `berth ssh-config` writes settings for ssh
 * itself.
 *
 * The server is not trusted with this machine: its connection details become file names, arguments and configuration
 * lines of ssh, so they are checked first (`checkedDetails`).
 */
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { constants, userInfo } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Berth, BerthError, type ConnectionDetails, type Instance } from '../../../client/src/berth.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { configFolder, writePrivate } from '../profiles.ts';
import { collect } from '../reading.ts';
import { instanceName, isInstanceName } from '../values.ts';
import { waitFor } from '../waiting.ts';
import { DEFAULTS, SETTING_OPTIONS, settingsOf } from './instance-settings.ts';
import { localPrivateKeyPath, localPublicKey, localPublicKeyPath, registerKey, sshFolder } from './keys.ts';
import { login } from './login.ts';

/** The login of Berth's images. */
export const SSH_USER = 'root';
const ID = /^inst_[0-9a-z]{26}$/;
const USER = /^[a-z_][a-z0-9_-]{0,31}$/;
/** A name or an address that ssh neither takes for an option nor expands. */
const HOST = /^[a-z0-9:][a-z0-9:._-]{0,254}$/i;
const LINE = /^[\x20-\x7e]+$/;

export type Details = Pick<ConnectionDetails, 'host' | 'port' | 'user' | 'known_hosts'>;

/** Of an instance in any state: its address is permanent, and its host keys are those of its last boot. */
function permanentDetails({ ssh: { host, port }, host_keys }: Instance): Details {
  return {
    host,
    port,
    user: SSH_USER,
    // sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": a port other than 22 is written [host]:port.
    known_hosts: host_keys.map(({ public_key }) => `[${host}]:${port} ${public_key}`),
  };
}

/** @throws CommandError when the details are not plain */
export function checkedDetails<T extends Details>({ id, name }: Instance, details: T): T {
  const { host, port, user, known_hosts } = details;
  const is_harmless =
    ID.test(id) &&
    isInstanceName(name) &&
    USER.test(user) &&
    HOST.test(host) &&
    Number.isInteger(port) &&
    known_hosts.every((line) => LINE.test(line));
  if (is_harmless) return details;
  throw new CommandError(
    'the server sent connection details that are not a plain address; they are not used',
  );
}

const PATIENCE_MS = 10_000;
const ATTEMPT_MS = 3_000;
const PAUSE_MS = 100;

function sendsBanner(host: string, port: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, signal, timeout: ATTEMPT_MS });
    const end = (sent: boolean) => {
      socket.destroy();
      resolve(sent);
    };
    socket.once('data', (bytes) => end(bytes.subarray(0, 4).toString('latin1') === 'SSH-'));
    for (const event of ['error', 'timeout', 'close'] as const) socket.once(event, () => end(false));
  });
}

/**
 * After a start the route to a VM may appear a moment after the VM. Returns when sshd answers, or after ten seconds: ssh then
 * reports the problem.
 */
async function waitForBanner(host: string, port: number, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!signal.aborted && performance.now() < deadline) {
    if (await sendsBanner(host, port, signal)) return;
    await sleep(PAUSE_MS);
  }
}

export const IDENTITY = {
  identity: { type: 'string', short: 'i', value: 'FILE', help: 'the private key' },
} as const;
/** The options of ssh that take a value, as in its manual page. */
const PASSED_TO_SSH = { rest: '[SSH-OPTION…] [COMMAND…]', passes: 'BbcDEeFIiJLlmOopQRSWw' } as const;
const SSH_RULE =
  "Options of one letter are passed to ssh (-i is Berth's and means the same); options with two dashes are Berth's. The first word after NAME that is no option begins the command, and all that follows is its own.";
const START: NonNullable<Command['options']> = {
  'no-start': { type: 'boolean', help: 'fail if the VM is not running, instead of starting it' },
};

/** The connection details; starts the VM if it does not run. */
async function reach(call: Call, berth: Berth, instance: Instance): Promise<ConnectionDetails> {
  return checkedDetails(instance, await detailsOf(call, berth, instance));
}

async function detailsOf(call: Call, berth: Berth, instance: Instance): Promise<ConnectionDetails> {
  const { id, name } = instance;
  try {
    const details = await berth.instances.ssh(id);
    if (details.allowed_keys > 0) return details;
    throw new CommandError(`${name} accepts no SSH key`, {
      next: `berth ssh-key add, or berth instance ssh-keys ${name} --account`,
      exit_code: 5,
    });
  } catch (error) {
    const off = error instanceof BerthError && error.code === 'VM_NOT_RUNNING';
    if (!off) throw error;
    if (call.options.flag('no-start')) {
      throw new CommandError(`${name} is not running`, { next: `berth start ${name}`, exit_code: 5 });
    }
  }
  if ((await berth.instances.keySet(id)).data.length === 0) {
    // A problem with the keys is reported before the boot.
    throw new CommandError(`${name} accepts no SSH key`, { next: 'berth ssh-key add', exit_code: 5 });
  }
  // Waits for a VM that is starting or stopping.
  if (instance.vm.state === 'stopping') await waitFor(call, berth, instance, 'stopped', 'stopping');
  if (instance.vm.state === 'suspending') await waitFor(call, berth, instance, 'suspended', 'suspending');
  await berth.instances.startVm(id);
  await waitFor(call, berth, instance, 'running', 'starting');
  const details = await berth.instances.ssh(id);
  await waitForBanner(details.host, details.port, call.signal);
  return details;
}

/** Writes the host keys of one instance to a file. @returns its path */
function knownHosts(call: Call, { id }: Instance, { known_hosts }: Details): string {
  const folder = join(configFolder(call.session.env), 'known_hosts');
  return writePrivate(folder, id, known_hosts.map((line) => `${line}\n`).join(''));
}

/** ssh ignores HOME and uses the password file, so a key in HOME must be passed by its path. */
function identityOf({ options, session }: Call): string | undefined {
  const given = options.text('identity');
  if (given !== undefined) return given;
  const path = localPublicKeyPath(session.env);
  if (path === undefined || dirname(path) === join(userInfo().homedir, '.ssh')) return undefined;
  return path.replace(/\.pub$/, '');
}

export async function ssh(call: Call): Promise<number> {
  const berth = call.session.berth();
  const instance = await berth.instances.find(call.args[0] ?? '');
  const details = await reach(call, berth, instance);
  const { host, port, user } = details;
  const identity = identityOf(call);
  const options = [
    `UserKnownHostsFile="${knownHosts(call, instance, details)}"`,
    'GlobalKnownHostsFile=none',
    'StrictHostKeyChecking=yes',
    // The lines must contain the address that ssh gets.
    'CheckHostIP=no',
  ].flatMap((each) => ['-o', each]);
  const args = [
    ...options,
    ...(identity === undefined ? [] : ['-i', identity]),
    ...['-p', String(port), `${user}@${host}`],
    ...call.rest,
  ];
  return new Promise((resolve, reject) => {
    const child = spawn('ssh', args, { stdio: 'inherit' });
    child.once('error', (error: NodeJS.ErrnoException) => {
      const missing = error.code === 'ENOENT';
      const next = missing ? 'apt-get install openssh-client' : null;
      reject(new CommandError(missing ? 'ssh is not installed on this machine' : error.message, { next }));
    });
    child.once('close', (code, signal) => {
      resolve(code ?? 128 + (signal === null ? 0 : constants.signals[signal]));
    });
  });
}

/** A name without meaning in ssh_config. */
const hostOf = ({ name }: Instance) => `${name}.berth`;

function blockOf(call: Call, instance: Instance, details: Details): string {
  const identity = identityOf(call);
  return [
    `Host ${hostOf(instance)}`,
    `  HostName ${details.host}`,
    `  Port ${details.port}`,
    `  User ${details.user}`,
    ...(identity === undefined ? [] : [`  IdentityFile "${identity}"`]),
    `  UserKnownHostsFile "${knownHosts(call, instance, details)}"`,
    '  GlobalKnownHostsFile none',
    '  StrictHostKeyChecking yes',
    '',
  ].join('\n');
}

function readOrEmpty(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return '';
    throw error;
  }
}

/** When a connection works. @param runs the VM does now */
function worksWhen({ name, wake_on_connect }: Instance, { known_hosts }: Details, runs: boolean): string {
  if (known_hosts.length === 0)
    return `works once the host key is known: berth ssh-config ${name} starts ${name} and adds it.`;
  if (runs) return 'works now.';
  return wake_on_connect
    ? 'works now: a connection starts the VM.'
    : `works while ${name} runs. Start it: berth start ${name}`;
}

/** Our blocks are in a separate file. The user's file gets one line at its top, where it applies to every host. */
async function sshConfig(call: Call): Promise<undefined> {
  const { session, terminal, options, args } = call;
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const details = options.flag('no-start')
    ? checkedDetails(instance, permanentDetails(instance))
    : await reach(call, berth, instance);
  const block = blockOf(call, instance, details);
  if (options.flag('print')) return void terminal.write(block);
  const folder = configFolder(session.env);
  const ours = join(folder, 'ssh_config');
  const others = readOrEmpty(ours)
    .split(/^(?=Host )/m)
    .filter((each) => each.trim() !== '' && !each.startsWith(`Host ${hostOf(instance)}\n`));
  writePrivate(folder, 'ssh_config', [...others, block].join(''));
  const home = sshFolder(session.env);
  const include = `Include "${ours}"\n`;
  const theirs = readOrEmpty(join(home, 'config'));
  if (!theirs.includes(include)) writePrivate(home, 'config', include + theirs);
  // The file that ssh reads, independent of HOME.
  const read = join(userInfo().homedir, '.ssh');
  const works = worksWhen(instance, details, !options.flag('no-start') || instance.vm.state === 'running');
  const words =
    home === read
      ? `ssh ${hostOf(instance)} ${works} Editors can use it too.`
      : `ssh -F ${join(home, 'config')} ${hostOf(instance)} ${works} (Without -F ssh reads ${join(read, 'config')}: HOME is another folder.)`;
  terminal.done(words, { host: hostOf(instance), file: ours }, hostOf(instance));
}

/** Derives the .pub file of a private key; ssh-keygen asks for its passphrase. @throws CommandError */
function makePublicKey(path: string): string {
  try {
    const stdio = ['inherit', 'pipe', 'inherit'] as const;
    const text = execFileSync('ssh-keygen', ['-y', '-f', path], { stdio: [...stdio], encoding: 'utf8' });
    writeFileSync(`${path}.pub`, text, { flag: 'wx' });
    return text;
  } catch {
    throw new CommandError(`${path} exists, but ${path}.pub is missing and could not be derived from it`, {
      next: `ssh-keygen -y -f ${path} > ${path}.pub`,
    });
  }
}

/** Without a passphrase, for ssh without a terminal. */
function makeKey(call: Call): string {
  const folder = sshFolder(call.session.env);
  const path = join(folder, 'id_ed25519');
  const private_key = localPrivateKeyPath(call.session.env);
  if (private_key !== undefined) {
    try {
      return makePublicKey(private_key);
    } catch (error) {
      // Skip a key of another type whose passphrase cannot be asked.
      if (private_key === path) throw error;
    }
  }
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  try {
    execFileSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', path], { stdio: 'ignore' });
  } catch {
    throw new CommandError(`ssh-keygen could not create ${path}`, { next: 'apt-get install openssh-client' });
  }
  call.terminal.say(`Created an SSH key without a passphrase: ${path}`);
  return localPublicKey(call.session.env) ?? '';
}

/** Creates it, unless a concurrent `up` did. */
async function made(make: () => Promise<unknown>, isThere: () => Promise<boolean>): Promise<void> {
  try {
    await make();
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'CONFLICT' || !(await isThere())) throw error;
  }
}

/** Registers the key that ssh will use. */
async function ensureKey(call: Call, berth: Berth): Promise<void> {
  const public_key = localPublicKey(call.session.env) ?? makeKey(call);
  const blob = public_key.split(/\s+/)[1];
  const isThere = async () => {
    const keys = await collect(berth.list('listSshKeys', { query: { limit: 200 } }));
    return keys.some((each) => each.public_key.split(' ')[1] === blob);
  };
  if (!(await isThere())) await made(() => registerKey(call, public_key), isThere);
}

async function ensureInstance(call: Call, berth: Berth, name: string): Promise<void> {
  try {
    await berth.instances.find(name);
    if (Object.values(settingsOf(call)).some((each) => each !== undefined))
      call.terminal.warn(`berth: ${name} already exists and stays as it is; berth set ${name} changes it`);
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') throw error;
    const make = async () => {
      await berth.instances.create({ ...settingsOf(call), name });
      call.terminal.say(`Created ${name}.`);
    };
    await made(make, () =>
      berth.instances.find(name).then(
        () => true,
        () => false,
      ),
    );
  }
}

async function up(call: Call): Promise<number> {
  const { session, args, options } = call;
  const name = instanceName(args[0] ?? '');
  if (!session.env['BERTH_API_KEY'] && session.profile === undefined) await login(call);
  const berth = session.berth();
  if (options.text('identity') === undefined) await ensureKey(call, berth);
  await ensureInstance(call, berth, name);
  return ssh(call);
}

const UP: Command = {
  name: 'up',
  ...INSTANCE,
  ...PASSED_TO_SSH,
  summary: 'log in to an instance, and create what is missing for that',
  details: `Before it logs in, it creates a login, an SSH key and the instance, and starts the VM, where they are missing. ${DEFAULTS} ${SSH_RULE}`,
  example: 'berth up web',
  options: { ...SETTING_OPTIONS, ...IDENTITY },
  run: up,
};

export const SSH_COMMANDS: readonly Command[] = [
  UP,
  {
    name: 'ssh',
    ...INSTANCE,
    ...PASSED_TO_SSH,
    summary: 'log in with ssh, or run a command; starts the VM first',
    details: `${SSH_RULE} The exit code is ssh's.`,
    example: 'berth ssh web -L 8080:localhost:80',
    options: { ...IDENTITY, ...START },
    run: ssh,
  },
  {
    name: 'ssh-config',
    ...INSTANCE,
    summary: 'write a Host block, so that ssh NAME.berth and editors work',
    example: 'berth ssh-config web && ssh web.berth',
    options: {
      print: { type: 'boolean', help: "print it, and leave ssh's settings unchanged" },
      'no-start': { type: 'boolean', help: 'leave a stopped VM stopped: its address is permanent' },
    },
    run: sshConfig,
  },
];
