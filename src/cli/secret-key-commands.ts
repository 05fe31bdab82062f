/**
 * `berth secret-key …`, on the server: replaces the key that opens the root key (control-plane/fleet/root-key.ts). Each command may be
 * repeated after an interruption: the new key is in its file before the database knows it.
 */
import { randomBytes } from 'node:crypto';
import { chmod, readFile, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { Expected, parseSecretKey } from '../config/settings.ts';
import { transaction } from '../control-plane/db/pool.ts';
import { addSecretKey, forgetSecretKey, type WhichKey } from '../control-plane/fleet/root-key.ts';
import { writeSecret } from '../launcher/data-folder.ts';
import { errnoOf, messageOf } from '../shared/errors.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { noteOperator, type ServerContext } from './server-context.ts';

/** From now on the key in the file opens the database, too. A missing file gets a new key. */
export async function rotateSecretKey(server: ServerContext, file: string): Promise<string> {
  const path = resolve(file);
  const found = await keyIn(path);
  const key = found ?? randomBytes(32);
  const outcome = await transaction(server.db, async (tx) => {
    const added = await addSecretKey(tx, server.secret_key, key);
    if (added !== 'added') return added;
    if (found === null) await writeKey(path, key);
    await noteOperator(tx, server, 'secret_key.rotate', 'secret key');
    return added;
  });
  if (outcome === 'same')
    throw new CommandError(`${path}: is the present key; name a file that does not exist yet`, {
      exit_code: EXIT.usage,
    });
  if (outcome === 'another')
    throw new CommandError(`${path}: is not the key that is replacing the present one already`, {
      next: 'berth secret-key forget-old to finish that, or berth secret-key forget-new to end it',
      exit_code: EXIT.state,
    });
  return `Two keys open the database now: the present one and the one in ${path}.\n${nextStep(server, path)}`;
}

/** From now on only the key of the settings opens the database. */
export async function forgetKey(server: ServerContext, which: WhichKey): Promise<string> {
  const outcome = await transaction(server.db, async (tx) => {
    const done = await forgetSecretKey(tx, server.secret_key, which);
    if (done === 'forgotten') await noteOperator(tx, server, 'secret_key.forget', 'secret key', { which });
    return done;
  });
  if (outcome === 'present')
    throw new CommandError(`${placeOf(server)}: is the ${which} key itself`, {
      next: `set the other one, then berth secret-key forget-${which}`,
      exit_code: EXIT.state,
    });
  if (outcome === 'none') return 'Only one key opens the database: there is none to forget.\n';
  return `Only the present key opens the database from now on. The ${which} one opens the backups that were made with it.\n`;
}

function placeOf({ config, paths }: ServerContext): string {
  return config.secret_key === null ? paths.secret_key : 'BERTH_SECRET_KEY';
}

function nextStep(server: ServerContext, path: string): string {
  return server.config.secret_key === null
    ? `Next: mv ${path} ${server.paths.secret_key} && berth secret-key forget-old\n`
    : 'Next: set BERTH_SECRET_KEY to it on each control plane and restart them one after the other, then run berth secret-key forget-old with it.\n';
}

/** Null: there is no such file. Others cannot read it afterwards. */
async function keyIn(path: string): Promise<Buffer | null> {
  try {
    const key = parseSecretKey((await readFile(path, 'utf8')).trim());
    if (((await stat(path)).mode & 0o077) !== 0) await chmod(path, 0o600);
    return key;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return null;
    const why =
      error instanceof Expected
        ? `has no key; expected ${error.message}`
        : `cannot be read: ${messageOf(error)}`;
    throw new CommandError(`${path}: ${why}`, { exit_code: EXIT.usage });
  }
}

async function writeKey(path: string, key: Buffer): Promise<void> {
  try {
    await writeSecret(path, `${key.toString('hex')}\n`);
  } catch (error) {
    if (errnoOf(error) === undefined) throw error;
    throw new CommandError(`${path}: cannot be written: ${messageOf(error)}`, { exit_code: EXIT.usage });
  }
}
