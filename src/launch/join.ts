/** Checks, before anything else, what a host of a fleet needs. */
import { chmod, lstat, readFile } from 'node:fs/promises';
import { type JoinToken, parseJoinToken } from '../agent-api/join-token.ts';
import type { Config } from '../config/config.ts';
import { messageOf } from '../lib/errors.ts';
import { StartError } from './start-error.ts';

/** A secret of Kubernetes and a credential of systemd cannot be changed, and are private already. */
const ignored = () => undefined;

/** Reads the token that `berth host add` printed, and makes its file private. @throws StartError */
export async function readJoinToken(path: string): Promise<JoinToken> {
  try {
    if (((await lstat(path)).mode & 0o077) !== 0) await chmod(path, 0o600).catch(ignored);
    const token = parseJoinToken(await readFile(path, 'utf8'));
    if (token) return token;
  } catch (error) {
    throw new StartError(`BERTH_HOST_TOKEN_FILE: ${path} cannot be read: ${messageOf(error)}`, 2, {
      cause: error,
    });
  }
  throw new StartError(`BERTH_HOST_TOKEN_FILE: ${path} holds no token; berth host add NAME prints one`);
}

/** @throws StartError */
export async function checkJoin(config: Config): Promise<void> {
  if (config.join === null) return;
  await readJoinToken(config.join.token_path);
  if (config.s3 === null) {
    throw new StartError(
      'BERTH_S3_BUCKET: is not set; a host needs the same bucket as the control plane. A folder serves one machine only',
    );
  }
}
