/** The user of a sandbox's commands and files, where paths begin, and what a new guest gets for both. */
import { posix } from 'node:path';
import type { VmHandle } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';
import type { Labels } from './sandbox.ts';

export const DEFAULT_USER = 'user';
const ENVIRONMENT_FILE = '/etc/profile.d/e2b-environment.sh';

/** As in E2B's templates: a user `user` with a home, who may do everything where sudo is installed. */
const PREPARE = `
id -u ${DEFAULT_USER} >/dev/null 2>&1 || useradd --create-home --shell /bin/bash ${DEFAULT_USER} || exit
if [ -d /etc/sudoers.d ]; then echo '${DEFAULT_USER} ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/${DEFAULT_USER}; fi
cat >${ENVIRONMENT_FILE}
`;

/** @param profile from `profileOf` */
export async function prepareGuest(vm: VmHandle, profile: string): Promise<void> {
  const { exit_code, stderr } = await vm.exec(['sh', '-c', PREPARE], { input: profile });
  if (exit_code !== 0) throw new Failure('internal', `The guest could not be prepared: ${stderr}`);
}

/** Login shells read it, which all commands of E2B are. A command's own variables win. */
export function profileOf(environment: Labels): string {
  return Object.entries(environment)
    .map(([name, value]) => {
      if (!/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || typeof value !== 'string' || value.includes('\0'))
        throw new Failure('invalid_argument', `${name} cannot be an environment variable.`);
      return `[ -n "\${${name}+x}" ] || export ${name}='${value.replaceAll("'", `'\\''`)}'\n`;
    })
    .join('');
}

/** The user of `Authorization: Basic USER:`. */
export function userOf(authorization: string | undefined): string {
  const [, encoded = ''] = /^Basic ([A-Za-z0-9+/=]+)$/.exec(authorization ?? '') ?? [];
  return Buffer.from(encoded, 'base64').toString('utf8').split(':')[0] || DEFAULT_USER;
}

/** Absolute; relative paths and `~` begin at the user's home. */
export function guestPath(user: string, path: string): string {
  const home = user === 'root' ? '/root' : `/home/${user}`;
  return posix.resolve(home, path.replace(/^~(?=\/|$)/, '.'));
}
