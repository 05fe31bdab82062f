/** `berth up NAME`: logs in to an instance. Creates a missing login, SSH key, instance or running VM first. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Berth, BerthError } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { instanceName } from '../numbers.ts';
import { collect } from '../reading.ts';
import { DEFAULTS, SETTINGS, settingsOf } from './instance-settings.ts';
import { localPrivateKeyPath, localPublicKey, registerKey, sshFolder } from './key-commands.ts';
import { login } from './login-commands.ts';
import { IDENTITY, PASSED_TO_SSH, SSH_RULE, ssh } from './ssh-commands.ts';

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

export const UP: Command = {
  name: 'up',
  args: ['NAME'],
  names_instances: true,
  ...PASSED_TO_SSH,
  summary: 'log in to an instance, and create what is missing for that',
  details: `Before it logs in, it creates a login, an SSH key and the instance, and starts the VM, where they are missing. ${DEFAULTS} ${SSH_RULE}`,
  example: 'berth up web',
  options: { ...SETTINGS, ...IDENTITY },
  run: up,
};
