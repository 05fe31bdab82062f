/**
 * Cursors: sealed with AES-256-GCM, bound to route, principal and filter by the additional data, good for
 * three days. Nobody can read, make or move one. And the pages that they lead through.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import type { Principal } from '../auth/principal.ts';
import { invalid } from '../lib/errors.ts';

const LIFETIME_S = 3 * 24 * 3600;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** What a cursor is good for. */
export interface CursorScope {
  readonly route: string;
  readonly principal: Principal;
  readonly filter: Record<string, unknown>;
}

export class CursorSealer {
  readonly #key: Buffer;
  readonly #now: () => number;

  constructor(secret_key: Buffer, now: () => number = Date.now) {
    this.#key = Buffer.from(hkdfSync('sha256', secret_key, '', 'berth cursor v1', 32));
    this.#now = now;
  }

  /** `last_id`: the id after which the next page begins. */
  seal(scope: CursorScope, last_id: string): string {
    const nonce = randomBytes(NONCE_BYTES);
    const cipher = createCipheriv('aes-256-gcm', this.#key, nonce).setAAD(bound(scope));
    const expires_s = Math.floor(this.#now() / 1000) + LIFETIME_S;
    const sealed = Buffer.concat([
      cipher.update(JSON.stringify([expires_s, last_id]), 'utf8'),
      cipher.final(),
    ]);
    return Buffer.concat([nonce, sealed, cipher.getAuthTag()]).toString('base64url');
  }

  /** @throws AppError INVALID_REQUEST when it is not ours, not for this list, or too old */
  open(scope: CursorScope, cursor: string): string {
    const bytes = Buffer.from(cursor, 'base64url');
    if (bytes.length <= NONCE_BYTES + TAG_BYTES) throw refusal();
    let opened: [number, string];
    try {
      const decipher = createDecipheriv('aes-256-gcm', this.#key, bytes.subarray(0, NONCE_BYTES), {
        authTagLength: TAG_BYTES,
      })
        .setAAD(bound(scope))
        .setAuthTag(bytes.subarray(-TAG_BYTES));
      const text = Buffer.concat([
        decipher.update(bytes.subarray(NONCE_BYTES, -TAG_BYTES)),
        decipher.final(),
      ]).toString('utf8');
      opened = JSON.parse(text) as [number, string];
    } catch {
      throw refusal();
    }
    if (opened[0] * 1000 < this.#now()) throw refusal();
    return opened[1];
  }
}

function bound({ route, principal, filter }: CursorScope): Buffer {
  const filters = Object.entries(filter)
    .filter(([, value]) => value !== undefined)
    .sort(([a], [b]) => a.localeCompare(b));
  return Buffer.from(JSON.stringify([route, principal.credential.id, principal.org_id, filters]));
}

function refusal() {
  return invalid('cursor', 'is not valid here, or has expired; start again without it');
}

const DEFAULT_LIMIT = 50;

/** A page's size from its query text. @throws AppError INVALID_REQUEST out of 1 to `max` */
function readLimit(text: string | undefined, max: number): number {
  if (text === undefined) return DEFAULT_LIMIT;
  const limit = Number(text);
  if (!Number.isInteger(limit) || limit < 1 || limit > max) throw invalid('limit', `must be 1 to ${max}`);
  return limit;
}

interface PagedRequest {
  readonly query: { readonly limit?: string | undefined; readonly cursor?: string | undefined };
}

/** A list that is asked for page by page. */
export interface PagedList<Row extends { readonly id: string }, Shown> {
  readonly route: string;
  /** What it is of, where the path says so: a cursor is good for the same, and for the same query, only. */
  readonly of?: Record<string, unknown>;
  readonly max_limit?: number;
  /** Up to `count` rows behind the one of the id `before`; from the beginning where that is null. */
  readonly list: (before: string | null, count: number) => Promise<readonly Row[]>;
  readonly show: (row: Row) => Shown;
}

/** The page that `request` asks for, and the cursor of the next if there is more. @throws AppError INVALID_REQUEST */
export async function pageOfList<Row extends { readonly id: string }, Shown>(
  cursors: CursorSealer,
  principal: Principal,
  { query }: PagedRequest,
  { route, of, max_limit = 200, list, show }: PagedList<Row, Shown>,
): Promise<{ data: Shown[]; next_cursor: string | null }> {
  const { limit: limit_text, cursor, ...filter } = query;
  const limit = readLimit(limit_text, max_limit);
  const scope = { route, principal, filter: { ...filter, ...of } };
  const before = cursor === undefined ? null : cursors.open(scope, cursor);
  // One more than is shown tells whether there is more.
  const rows = await list(before, limit + 1);
  const shown = rows.slice(0, limit);
  const last = shown.at(-1);
  return {
    data: shown.map(show),
    next_cursor: rows.length > limit && last ? cursors.seal(scope, last.id) : null,
  };
}
