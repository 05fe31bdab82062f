/** What a host of a fleet needs before anything else: its join token, or the credential that it has exchanged it for. */
import { existsSync } from 'node:fs';
import { chmod, lstat, readFile } from 'node:fs/promises';
import { type JoinToken, parseJoinToken } from '../agent-api/join-token.ts';
import type { Config } from '../config/config.ts';
import { pathsIn } from '../config/paths.ts';
import { messageOf } from '../lib/errors.ts';
import { StartError } from './start-error.ts';

/** Reads the token that `berth host add` printed, and makes its file private. @throws StartError */
export async function readJoinToken(path: string): Promise<JoinToken> {
  try {
    if (((await lstat(path)).mode & 0o077) !== 0) await chmod(path, 0o600);
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
  const { token_path } = config.join;
  // A host that has joined needs the token no more.
  const joined = existsSync(pathsIn(config.data_dir).host_credential);
  if (!joined || existsSync(token_path)) await readJoinToken(token_path);
  if (config.s3 !== null) {
    throw new StartError(
      'BERTH_S3_BUCKET: is set, but a host of a fleet has no bucket: the control plane signs its requests. ' +
        'Remove BERTH_S3_… and the credentials from this machine',
    );
  }
}
