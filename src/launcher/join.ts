/**
 * Joins a host or an ingress on another machine to a fleet. It reads the token that the operator has put into a file. A
 * host exchanges its token for a credential that it makes itself (`HostCredential`); an ingress uses its token itself.
 * Both store the list of control planes that they know, for their next start.
 */
import { createHash, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { chmod, lstat, readFile } from 'node:fs/promises';
import { type Static, Type } from 'typebox';
import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import { ControlPlaneClient, CredentialRefused } from '../protocol/client.ts';
import { CONTROL_PLANES_MAX, ListedControlPlane } from '../protocol/ingress-types.ts';
import { type JoinToken, parseJoinToken } from '../protocol/protocol.ts';
import { conforms } from '../protocol/schemas.ts';
import { assert } from '../shared/assert.ts';
import { messageOf } from '../shared/errors.ts';
import type { Log } from '../shared/log.ts';
import { backoffMs, pause } from '../shared/retry.ts';
import { writeSecret } from './data-folder.ts';
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

interface Saved {
  readonly token: string;
  /** Made for a rotation that has not ended. */
  readonly next: string | null;
  readonly fingerprint: string;
  /** SHA-256 of the join token that it was exchanged for: another token in the file is for joining anew. */
  readonly joined_with: string;
  readonly joined: boolean;
}

export interface CredentialFiles {
  /** The file of the credential. */
  readonly path: string;
  readonly join_path: string;
  readonly control_plane: string;
  readonly log: Log;
  readonly signal: AbortSignal;
}

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
const newCredential = () => `berth_host_${randomBytes(32).toString('base64url')}`;

/**
 * The credential of a host on another machine, which it makes itself and keeps in `secrets/host-credential`.
 *
 *   new ── join ─▶ joined ── rotate: a next one is made and announced ─▶ joined, with the next one as its token
 *
 * Invariants: every credential is on the disk before the control plane hears of it, so after a death at any point the same call is
 * repeated with the same credential. The credential before stays valid until the control plane has seen the next one.
 */
export class HostCredential {
  readonly #place: CredentialFiles;
  #saved: Saved;

  private constructor(place: CredentialFiles, saved: Saved) {
    this.#place = place;
    this.#saved = saved;
  }

  /** Reads it, or joins with the token, however long the control plane is away. @throws StartError */
  static async open(place: CredentialFiles): Promise<HostCredential> {
    const saved = await readSaved(place.path);
    const token = saved?.joined && !existsSync(place.join_path) ? null : await readJoinToken(place.join_path);
    if (saved && (token === null || sha256(token.token) === saved.joined_with)) {
      const credential = new HostCredential(place, saved);
      if (!saved.joined && token !== null) await credential.#join(token);
      return credential;
    }
    assert(token !== null, 'a host without a credential has a token');
    const credential = new HostCredential(place, {
      token: token.is_credential ? token.token : newCredential(),
      next: null,
      fingerprint: token.fingerprint,
      joined_with: sha256(token.token),
      joined: token.is_credential,
    });
    await credential.#save({});
    if (!token.is_credential) await credential.#join(token);
    return credential;
  }

  get token(): string {
    return this.#saved.token;
  }
  get fingerprint(): string {
    return this.#saved.fingerprint;
  }

  /** Replaces it. May be repeated after any failure. */
  async rotate(client: Pick<ControlPlaneClient, 'rotate'>): Promise<void> {
    const next = this.#saved.next ?? newCredential();
    await this.#save({ next });
    await client.rotate({ credential_sha256: sha256(next) });
    await this.#save({ token: next, next: null });
    this.#place.log.info('the credential of this host is replaced');
  }

  async #join({ token, fingerprint }: JoinToken): Promise<void> {
    const { control_plane: address, log, signal } = this.#place;
    const client = new ControlPlaneClient({ address, token, fingerprint });
    try {
      for (let failures = 0; ; failures++) {
        try {
          await client.join({ credential_sha256: sha256(this.token) });
          await this.#save({ joined: true });
          log.info('this host has joined, and has a credential of its own');
          return;
        } catch (error) {
          if (error instanceof CredentialRefused)
            throw new StartError(`the join token is refused: ${reasonIn(error.message)}`, 2, {
              cause: error,
            });
          log.warn(
            { reason: messageOf(error), address },
            'the control plane cannot be joined yet; it is tried again',
          );
        }
        if (!(await pause(backoffMs(failures, 500, 10_000), signal))) return;
      }
    } finally {
      await client.close();
    }
  }

  async #save(change: Partial<Saved>): Promise<void> {
    const saved = { ...this.#saved, ...change };
    await writeSecret(this.#place.path, `${JSON.stringify(saved)}\n`);
    this.#saved = saved;
  }
}

async function readSaved(path: string): Promise<Saved | null> {
  if (!existsSync(path)) return null;
  try {
    const { token, next, fingerprint, joined_with, joined } = JSON.parse(await readFile(path, 'utf8'));
    if ([token, fingerprint, joined_with].every((each) => typeof each === 'string'))
      return {
        token,
        next: typeof next === 'string' ? next : null,
        fingerprint,
        joined_with,
        joined: joined === true,
      };
  } catch {
    // As if it had other content.
  }
  throw new StartError(
    `${path} is damaged. Remove it, and put a new token into BERTH_HOST_TOKEN_FILE: berth host rotate NAME --join prints one`,
  );
}

/** The control plane's own words. */
function reasonIn(text: string): string {
  return /"message":"([^"]*)"/.exec(text)?.[1] ?? text;
}

type File = Pick<Paths, 'control_planes'>;

/** `given`: the fingerprint in the token with which the list was learned. */
const Kept = Type.Object({
  given: Type.String(),
  known: Type.Array(ListedControlPlane, { maxItems: CONTROL_PLANES_MAX }),
});

/**
 * The control planes that a host or an ingress of a fleet knows, kept for its next start: the one that it was given may
 * be down then. After a replacement of the certificate (ADR 49) only this file has the new one's fingerprint, so it is
 * written as durably as a secret. Empty when nothing readable is kept, or for a token with another fingerprint: the
 * given control plane tells them again.
 */
export async function readControlPlanes(
  { control_planes }: File,
  given: string,
): Promise<readonly ListedControlPlane[]> {
  try {
    const read: unknown = JSON.parse(await readFile(control_planes, 'utf8'));
    if (!conforms(Kept, read)) return [];
    const kept = read as Static<typeof Kept>;
    return kept.given === given ? kept.known : [];
  } catch {
    return [];
  }
}

/** Keeps each list that it gets, one after the other. */
export function keepControlPlanes(
  { control_planes }: File,
  given: string,
  log: Log,
): (known: readonly ListedControlPlane[]) => void {
  let last = Promise.resolve();
  const write = (known: readonly ListedControlPlane[]) =>
    writeSecret(control_planes, `${JSON.stringify({ given, known })}\n`);
  return (known) => {
    log.info({ urls: known.map(({ url }) => url) }, 'the control planes that can be used');
    last = last
      .then(() => write(known))
      .catch((error: unknown) => log.warn({ err: error }, 'the list of control planes could not be kept'));
  };
}
