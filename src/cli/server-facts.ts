/**
 * Learns about a server without a login:
 *
 * - `findFirstLogin` reads the first administrator's generated password, if this user may read it in a data folder on
 *   this machine.
 * - `readSettings` gets the public settings of any server.
 * - `askServerFacts` asks the server on this machine for its weak settings, if this user may read its data folder.
 */
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs';
import { request } from 'node:http';
import { join, resolve } from 'node:path';
import type { Env } from '../config/env.ts';

export interface FoundLogin {
  readonly email: string;
  readonly password: string;
  readonly path: string;
}

const LOOPBACK = ['127.0.0.1', 'localhost', '[::1]'];

export const isLocal = (url: string) => LOOPBACK.includes(new URL(url).hostname);

/** Possible data folders of a server on this machine; `trusted`: a setting names it. */
function dataFolders(env: Env): readonly { readonly folder: string; readonly trusted: boolean }[] {
  const given = env['BERTH_DATA_DIR'];
  if (given !== undefined) return [{ folder: given, trusted: true }];
  // Of npm start in this folder; the checkout's; the Debian package's.
  const usual = ['data', join(import.meta.dirname, '..', '..', 'data'), '/var/lib/berth'];
  return usual.map((folder) => ({ folder, trusted: false }));
}

/** The current folder may be another user's. */
function isOwn(path: string): boolean {
  return [0, process.getuid?.()].includes(statSync(path).uid);
}

/** Of the server at `url`, or of any on this machine. Undefined when there is none that we may read. */
export function findFirstLogin(env: Env, url?: string): (FoundLogin & { readonly url: string }) | undefined {
  for (const { folder, trusted } of dataFolders(env)) {
    const path = resolve(folder, 'secrets', 'first-login');
    try {
      const found = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
      const { email, password, url: at } = found;
      if (typeof email !== 'string' || typeof password !== 'string' || typeof at !== 'string') continue;
      // Ignore a foreign file, and a file that names another machine.
      if (!trusted && !isOwn(path)) continue;
      if (!isLocal(at) || (url !== undefined && !isSame(url, at))) continue;
      return { email, password, path, url: at };
    } catch {
      // Missing, or not readable.
    }
  }
  return undefined;
}

/** Deletes the file when its password no longer works. */
export function forgetFirstLogin({ path }: FoundLogin): void {
  rmSync(path, { force: true });
}

const ANSWER_MS = 15_000;

/** The settings that a server tells without a login (`/settings.json`). */
export interface PublicSettings {
  readonly signups: 'open' | 'closed' | null;
  /** `files`: it has no mail server, and mails become files that only its operator can read. Null: not known. */
  readonly mail: 'smtp' | 'files' | null;
  /** `off`: people log in at the OpenID provider only. */
  readonly password_login: 'on' | 'off' | null;
  /** The OpenID provider; null: there is none, or it is not known. */
  readonly oidc: { readonly name: string } | null;
}

export const UNKNOWN_SETTINGS: PublicSettings = {
  signups: null,
  mail: null,
  password_login: null,
  oidc: null,
};

/** Never fails. */
export async function readSettings(url: string): Promise<PublicSettings> {
  try {
    const signal = AbortSignal.timeout(ANSWER_MS);
    const answer = await fetch(`${url}/settings.json`, { signal, redirect: 'error' });
    if (!answer.ok) return UNKNOWN_SETTINGS;
    return { ...UNKNOWN_SETTINGS, ...((await answer.json()) as Partial<PublicSettings>) };
  } catch {
    return UNKNOWN_SETTINGS;
  }
}

export interface ToldWeakness {
  readonly check: string;
  readonly found: string;
  readonly next: string;
}

/**
 * What the server on this machine knows of itself. It tells itself, because its environment differs from ours. The caller must be
 * able to read its data folder.
 */
export interface ServerFacts {
  readonly weaknesses: readonly ToldWeakness[];
  /** In its object store: bytes that nothing needs any more, and how long they stay. */
  readonly awaiting_removal_bytes: number;
  readonly removal_delay_seconds: number;
}

const ANSWER_MAX_BYTES = 1024 * 1024;

/** Of the server at `url`; `closed`: its data folder may exist, but is not readable; null: it is not on this machine. */
export async function askServerFacts(env: Env, url: string): Promise<ServerFacts | 'closed' | null> {
  let closed = false;
  for (const { folder, trusted } of dataFolders(env)) {
    const data = resolve(folder);
    if (!existsSync(join(data, 'secrets'))) continue;
    if (!trusted && !isOwn(data)) continue;
    try {
      const token = readFileSync(join(data, 'secrets', 'host-token'), 'utf8').trim();
      const { origins, ...facts } = await ask(join(data, 'run', 'agent-api.sock'), token);
      if (!origins.some((origin) => isSame(origin, url))) continue;
      return facts;
    } catch (error) {
      // Missing, not running, or not readable.
      if ((error as NodeJS.ErrnoException).code === 'EACCES') closed = true;
    }
  }
  return closed && isLocal(url) ? 'closed' : null;
}

/** Whether the origin is of this machine, which has several names. */
function isSame(origin: string, url: string): boolean {
  const [one, other] = [new URL(origin), new URL(url)];
  const local = (host: string) => (/^(127\..*|localhost|\[::1\])$/.test(host) ? 'here' : host);
  return (
    one.protocol === other.protocol &&
    one.port === other.port &&
    local(one.hostname) === local(other.hostname)
  );
}

interface Facts extends ServerFacts {
  readonly origins: readonly string[];
}

async function ask(socketPath: string, token: string): Promise<Facts> {
  const { AGENT_PROTOCOL, PROTOCOL_HEADER } = await import('../protocol/protocol.ts');
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    [PROTOCOL_HEADER]: String(AGENT_PROTOCOL),
  };
  const path = '/internal/v1/weaknesses';
  return new Promise((done, failed) => {
    const signal = AbortSignal.timeout(ANSWER_MS);
    const asked = request({ socketPath, path, method: 'POST', headers, signal }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part: string) => {
        text += part;
        if (text.length > ANSWER_MAX_BYTES) response.destroy(new Error('too long an answer'));
      });
      response.on('error', failed);
      response.on('end', () => {
        if (response.statusCode !== 200) return failed(new Error(`status ${response.statusCode}`));
        done(JSON.parse(text) as Facts);
      });
    });
    asked.on('error', failed);
    asked.end('{}');
  });
}
