/**
 * Implements the commands that run on the server and concern what all machines of an installation share: the ingresses,
 * the certificate that hosts pin, and the secret key, which opens the root key (control-plane/fleet/root-key.ts). A new
 * secret key is in its file before the database knows it, so each command on keys can be repeated after an
 * interruption.
 */
import { randomBytes } from 'node:crypto';
import { chmod, readFile, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { readEnv } from '../../config/env.ts';
import { Expected, parseSecretKey } from '../../config/settings.ts';
import { transaction } from '../../control-plane/db/pool.ts';
import {
  deleteIngress,
  findCertificates,
  insertIngress,
  type KeptCertificates,
  listIngresses,
  listLive,
} from '../../control-plane/fleet/control-plane-store.ts';
import {
  ANNOUNCED_SECONDS,
  certificateFingerprint,
  hostsCertificate,
  renewCertificate,
} from '../../control-plane/fleet/hosts-certificate.ts';
import { addSecretKey, forgetSecretKey, type WhichKey } from '../../control-plane/fleet/root-key.ts';
import { hashToken, INGRESS_PREFIX, newToken } from '../../control-plane/identity/tokens.ts';
import { writeSecret } from '../../launcher/data-folder.ts';
import { checkIngressJoin } from '../../launcher/join.ts';
import { configOrRefuse } from '../../launcher/start.ts';
import { composeJoinToken, refusalOf } from '../../protocol/protocol.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { table, timeCell } from '../table.ts';
import { Terminal } from '../terminal.ts';
import { NAME_RULE } from '../values.ts';
import { noteOperator, type ServerContext } from './context.ts';

/** Makes the certificate that replaces the one that hosts pin. */
export async function renewHostsCertificate(server: ServerContext): Promise<string> {
  const { db, root_key } = server;
  if ((await findCertificates(db)).present === null)
    throw new CommandError('there is no certificate to replace: no control plane has listened to hosts yet', {
      next: 'set BERTH_HOSTS_LISTEN, and start a control plane',
      exit_code: EXIT.state,
    });
  if ((await listLive(db)).length === 0)
    throw new CommandError('no control plane runs that could tell hosts of a new certificate', {
      next: 'start one, with BERTH_HOSTS_URL if it listens to hosts on every address',
      exit_code: EXIT.state,
    });
  const is_made = await transaction(db, async (tx) => {
    const made = await renewCertificate(tx, root_key);
    if (made) await noteOperator(tx, server, 'certificate.renew', 'certificate');
    return made;
  });
  if (!is_made)
    throw new CommandError('a new certificate is made already', {
      next: 'berth certificate show',
      exit_code: EXIT.state,
    });
  return 'A new certificate is made. Control planes tell hosts and ingresses of it now.\nNext: in a minute, restart the control planes one after the other. When the last one shows it, the old one is forgotten. See berth certificate show.\n';
}

/** Which control plane shows which certificate, and what is left of a replacement. */
export async function showHostsCertificate({ db }: ServerContext): Promise<string> {
  const kept = await findCertificates(db);
  const live = await listLive(db);
  if (live.length === 0) return 'No control plane runs that hosts on other machines could reach.\n';
  const rows = live.map(({ url, fingerprint }) => [url, nameOf(kept, fingerprint)]);
  return `${progressOf(kept)}\n${table(['CONTROL PLANE', 'SHOWS'], rows)}`;
}

function nameOf({ present, next }: KeptCertificates, fingerprint: string): string {
  const is = (each: { readonly certificate: string } | null) =>
    each !== null && certificateFingerprint(each.certificate) === fingerprint;
  if (is(next)) return 'the new certificate';
  if (!is(present)) return 'a replaced certificate: restart it';
  return next === null ? 'the certificate' : 'the old certificate';
}

function progressOf({ next }: KeptCertificates): string {
  if (next === null) return 'The certificate that hosts and ingresses know is not being replaced.';
  const left = Math.ceil(ANNOUNCED_SECONDS - next.announced_seconds);
  return left > 0
    ? `A new certificate is made. Hosts and ingresses are told of it for another ${left} s; control planes that start before that show the old one.`
    : 'A new certificate is made. Restart the control planes that show the old one, one after the other.';
}

/** PEM; what a new host or ingress pins: while there is a new one, that. */
export async function pinnedCertificate({ config, db, root_key }: ServerContext): Promise<string> {
  if (config.hosts_listen === null)
    throw new CommandError(
      'BERTH_HOSTS_LISTEN is not set: set it to the address at which other machines reach this one',
    );
  const { next } = await findCertificates(db);
  return next ? next.certificate : (await hostsCertificate(db, root_key)).cert;
}

/** Refuses settings with which `berth ingress` cannot run. @throws StartError */
export function checkIngress(): Promise<void> {
  return checkIngressJoin(configOrRefuse(readEnv(), process.cwd()));
}

/** Prints the token of a new ingress, once. */
export async function addIngress(server: ServerContext, name: string): Promise<string> {
  const { db } = server;
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name))
    throw new CommandError(NAME_RULE, { exit_code: EXIT.usage });
  const certificate = await pinnedCertificate(server);
  const token = newToken(INGRESS_PREFIX);
  await transaction(db, async (tx) => {
    const id = await insertIngress(tx, name, hashToken(token));
    if (id === null)
      throw new CommandError(`there is an ingress ${name} already`, {
        next: `another name, or berth ingress rm ${name}`,
        exit_code: EXIT.state,
      });
    await noteOperator(tx, server, 'ingress.add', id, { name });
  });
  return `${composeJoinToken(token, certificate)}\n`;
}

export async function showIngresses(
  { db }: ServerContext,
  terminal = new Terminal('human'),
): Promise<string> {
  const rows = await listIngresses(db);
  const listed = terminal.listText(rows, {
    headings: ['NAME', 'STATE', 'WATCHING SINCE', 'LAST SEEN'],
    row: ({ name, state, watching_since, reported_at }) => [
      name,
      state,
      timeCell(watching_since ? rfc3339(watching_since) : null),
      timeCell(reported_at ? rfc3339(reported_at) : null),
    ],
    more: { headings: ['ID'], row: ({ id }) => [id] },
    quiet: ({ name }) => name,
    empty: 'No ingresses.',
  });
  const refused = rows.flatMap(({ name, protocol }) => {
    const refusal = protocol === null ? null : refusalOf(protocol);
    return refusal === null ? [] : [`${name} is refused. ${refusal}\n`];
  });
  return terminal.format === 'human' ? listed + refused.join('') : listed;
}

/** Revokes its token: its next call is refused, and its routes and tunnels end with it. */
export async function removeIngress(server: ServerContext, name: string): Promise<string> {
  return transaction(server.db, async (tx) => {
    const id = await deleteIngress(tx, name);
    if (id === undefined) {
      const known = (await listIngresses(tx)).some((each) => each.name === name);
      if (known)
        throw new CommandError(
          `${name} is the ingress of a control plane's machine, which cannot be removed`,
          {
            exit_code: EXIT.state,
          },
        );
      throw new CommandError(`there is no ingress ${name}`, {
        next: 'berth ingress ls',
        exit_code: EXIT.not_found,
      });
    }
    await noteOperator(tx, server, 'ingress.remove', id, { name });
    return `Removed ${name}, and revoked its token. Stop Berth there: its open connections last until then.\n`;
  });
}

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
