/**
 * What the server on this machine knows of itself: its weaknesses, and what awaits removal in its object store. The server
 * itself tells, because its environment differs from ours. The caller must be able to read its data folder.
 */
import { existsSync, readFileSync, statSync } from 'node:fs';
import { request } from 'node:http';
import { join, resolve } from 'node:path';
import type { Env } from '../config/env.ts';
import { dataFolders, isLocal } from './first-login.ts';

export interface Weakness {
  readonly check: string;
  readonly found: string;
  readonly next: string;
}

export interface ServerFacts {
  readonly weaknesses: readonly Weakness[];
  /** In its object store: bytes that nothing needs any more, and how long they stay. */
  readonly awaiting_removal_bytes: number;
  readonly removal_delay_seconds: number;
}

const ANSWER_MS = 10_000;
const ANSWER_MAX_BYTES = 1024 * 1024;

/** Of the server at `url`; `closed`: its data folder may exist, but is not readable; null: it is not on this machine. */
export async function findWeaknesses(env: Env, url: string): Promise<ServerFacts | 'closed' | null> {
  let closed = false;
  for (const { folder, trusted } of dataFolders(env)) {
    const data = resolve(folder);
    if (!existsSync(join(data, 'secrets'))) continue;
    // The current folder may be another user's.
    if (!trusted && ![0, process.getuid?.()].includes(statSync(data).uid)) continue;
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

interface Answer extends ServerFacts {
  readonly origins: readonly string[];
}

async function ask(socketPath: string, token: string): Promise<Answer> {
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
        done(JSON.parse(text) as Answer);
      });
    });
    asked.on('error', failed);
    asked.end('{}');
  });
}
