/**
 * Reads lists page by page. A cursor is sealed, bound to its route, credential, organisation and filter, and valid for
 * three days: a caller can neither read nor forge one, nor use it elsewhere.
 */
import { invalid } from '../../shared/errors.ts';
import { Sealer } from '../../shared/seal.ts';
import type { Principal } from '../identity/principal.ts';

const LIFETIME_S = 3 * 24 * 3600;

/** The list that a cursor belongs to. */
export interface CursorScope {
  readonly route: string;
  readonly principal: Principal;
  readonly filter: Record<string, unknown>;
}

export class CursorSealer {
  readonly #sealer: Sealer;
  readonly #now: () => number;

  constructor(root_key: Buffer, now: () => number = Date.now) {
    this.#sealer = new Sealer(root_key, 'berth cursor v1');
    this.#now = now;
  }

  /** `last_id`: the id after which the next page begins. */
  seal(scope: CursorScope, last_id: string): string {
    const expires_s = Math.floor(this.#now() / 1000) + LIFETIME_S;
    return this.#sealer.seal(JSON.stringify([expires_s, last_id]), bound(scope)).toString('base64url');
  }

  /** @throws AppError INVALID_REQUEST where the cursor is forged, of another list, or expired */
  open(scope: CursorScope, cursor: string): string {
    const text = this.#sealer.open(Buffer.from(cursor, 'base64url'), bound(scope));
    if (text === null) throw refusal();
    const [expires_s, last_id] = JSON.parse(text) as [number, string];
    if (expires_s * 1000 < this.#now()) throw refusal();
    return last_id;
  }
}

function bound({ route, principal, filter }: CursorScope): string {
  const filters = Object.entries(filter)
    .filter(([, value]) => value !== undefined)
    .sort(([a], [b]) => a.localeCompare(b));
  return JSON.stringify([route, principal.credential.id, principal.org_id, filters]);
}

function refusal() {
  return invalid('cursor', 'is of another list, or has expired; start again without it');
}

const DEFAULT_LIMIT = 50;

/** The size of a page. @throws AppError INVALID_REQUEST outside 1 to `max` */
function readLimit(text: string | undefined, max: number): number {
  if (text === undefined) return DEFAULT_LIMIT;
  const limit = Number(text);
  if (!Number.isInteger(limit) || limit < 1 || limit > max) throw invalid('limit', `must be 1 to ${max}`);
  return limit;
}

interface PagedRequest {
  readonly query: { readonly limit?: string | undefined; readonly cursor?: string | undefined };
}

/** A list that callers read page by page. */
export interface PagedList<Row extends { readonly id: string }, Shown> {
  readonly route: string;
  /** Beside the query, what a cursor is bound to: the parent resource in the path. */
  readonly of?: Record<string, unknown>;
  readonly max_limit?: number;
  /** Up to `count` rows after the row with the id `before`; null: from the beginning. */
  readonly list: (before: string | null, count: number) => Promise<readonly Row[]>;
  readonly show: (row: Row) => Shown;
}

/** The requested page, and the cursor of the next if there is one. @throws AppError INVALID_REQUEST */
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
  // One row more than the page shows whether there is a next page.
  const rows = await list(before, limit + 1);
  const shown = rows.slice(0, limit);
  const last = shown.at(-1);
  return {
    data: shown.map(show),
    next_cursor: rows.length > limit && last ? cursors.seal(scope, last.id) : null,
  };
}
