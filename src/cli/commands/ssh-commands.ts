/** SSH to a guest with OpenSSH, which trusts only the host keys from the API. */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { constants, userInfo } from 'node:os';
import { dirname, join } from 'node:path';
import { type Berth, BerthError, type ConnectionDetails, type Instance } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { checkedDetails, type Details, permanentDetails } from '../connection-details.ts';
import { configFolder, writePrivate } from '../profiles.ts';
import { waitForBanner } from '../ssh-banner.ts';
import { waitFor } from '../waiting.ts';
import { localPublicKeyPath, sshFolder } from './key-commands.ts';

export const IDENTITY = {
  identity: { type: 'string', short: 'i', value: 'FILE', help: 'the private key' },
} as const;
/** The options of ssh that take a value, as in its manual page. */
export const PASSED_TO_SSH = { rest: '[SSH-OPTION…] [COMMAND…]', passes: 'BbcDEeFIiJLlmOopQRSWw' } as const;
export const SSH_RULE =
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

export const SSH_COMMANDS: readonly Command[] = [
  {
    name: 'ssh',
    args: ['NAME'],
    names_instances: true,
    ...PASSED_TO_SSH,
    summary: 'log in with ssh, or run a command; starts the VM first',
    details: `${SSH_RULE} The exit code is ssh's.`,
    example: 'berth ssh web -L 8080:localhost:80',
    options: { ...IDENTITY, ...START },
    run: ssh,
  },
  {
    name: 'ssh-config',
    args: ['NAME'],
    names_instances: true,
    summary: 'write a Host block, so that ssh NAME.berth and editors work',
    example: 'berth ssh-config web && ssh web.berth',
    options: {
      print: { type: 'boolean', help: "print it, and leave ssh's settings unchanged" },
      'no-start': { type: 'boolean', help: 'leave a stopped VM stopped: its address is permanent' },
    },
    run: sshConfig,
  },
];
