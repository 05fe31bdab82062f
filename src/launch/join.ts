/** The token of a host of a fleet. */
import { chmod, lstat, readFile } from 'node:fs/promises';
import { type JoinToken, parseJoinToken } from '../agent-api/join-token.ts';
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
