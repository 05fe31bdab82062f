/** The tokens of hosts and ingresses on other machines. */
import { chmod, lstat, readFile } from 'node:fs/promises';
import type { Config } from '../config/config.ts';
import { type JoinToken, parseJoinToken } from '../protocol/join-token.ts';
import { messageOf } from '../shared/errors.ts';
import { StartError } from './start-error.ts';

const OF_HOST = {
  setting: 'BERTH_HOST_TOKEN_FILE',
  command: 'berth host add NAME',
  kinds: ['join', 'host'],
} as const;
const OF_INGRESS = {
  setting: 'BERTH_INGRESS_TOKEN_FILE',
  command: 'berth ingress add NAME',
  kinds: ['ingress'],
} as const;
/** A secret of Kubernetes and a credential of systemd cannot be changed, and are private already. */
const ignored = () => undefined;

/** Reads the token that `berth host add` printed, and makes its file private. @throws StartError */
export function readJoinToken(path: string): Promise<JoinToken> {
  return readToken(path, OF_HOST);
}

/** The same for `berth ingress add`. @throws StartError */
export function readIngressToken(path: string): Promise<JoinToken> {
  return readToken(path, OF_INGRESS);
}

async function readToken(
  path: string,
  { setting, command, kinds }: typeof OF_HOST | typeof OF_INGRESS,
): Promise<JoinToken> {
  try {
    if (((await lstat(path)).mode & 0o077) !== 0) await chmod(path, 0o600).catch(ignored);
    const token = parseJoinToken(await readFile(path, 'utf8'));
    if (token && kinds.some((kind) => token.token.startsWith(`berth_${kind}_`))) return token;
  } catch (error) {
    throw new StartError(`${setting}: ${path} cannot be read: ${messageOf(error)}`, 2, { cause: error });
  }
  throw new StartError(`${setting}: ${path} holds no token; ${command} prints one`);
}

/** For `berth ingress`, which needs nothing else. @throws StartError */
export async function checkIngressJoin({ ingress_join }: Config): Promise<void> {
  if (ingress_join === null) {
    throw new StartError(
      [
        'BERTH_CONTROL_PLANE: is not set; expected https://HOST:PORT where a control plane listens to other machines',
        'BERTH_INGRESS_TOKEN_FILE: is not set; expected the file with the token that berth ingress add NAME printed',
      ].join('\n'),
    );
  }
  await readIngressToken(ingress_join.token_path);
}
