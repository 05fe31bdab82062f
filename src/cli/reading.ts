/**
 * Reads from the API what commands need: whole lists (`collect`), and a resource by its id or name (`findNamed`).
 * `changeCurrent` reads a resource and changes it, and repeats both if somebody else has changed it in between.
 */
import { type Answer, type Berth, BerthError, type Input, type OperationId } from '../../client/src/berth.ts';
import { actorWords } from '../../client/src/event-words.ts';
import type { Call } from './command.ts';
import { CommandError, EXIT } from './command-error.ts';

/** More is not readable for people; programs use the API. */
const MAX_ITEMS = 10_000;

export async function collect<T>(items: AsyncIterable<T>, most = MAX_ITEMS): Promise<T[]> {
  const found: T[] = [];
  for await (const item of items) {
    if (found.length >= most) break;
    found.push(item);
  }
  return found;
}

export interface ResourceKind<T> {
  /** `API key`. */
  readonly what: string;
  /** The command that lists them. */
  readonly list: string;
  /** Texts that stand for an item beside its id and name, such as a member's address. */
  readonly also?: (item: T) => readonly string[];
  /** Tells an item from others of the same name, in an error. */
  readonly detail?: (item: T) => string;
}

/** Warns when a new resource has the name of another: then only its id names it. */
export async function warnOfNamesakes<T extends { readonly id: string; readonly name: string }>(
  { terminal }: Pick<Call, 'terminal'>,
  items: AsyncIterable<T>,
  made: Pick<T, 'id' | 'name'>,
  { what, detail }: ResourceKind<T>,
): Promise<void> {
  // A caller who may create some may not always list them.
  const all = await collect(items).catch(() => []);
  const others = all.filter(({ id, name }) => name === made.name && id !== made.id);
  if (others.length === 0) return;
  const lines = others.map((each) => `\n  ${each.id}  ${detail?.(each) ?? ''}`.trimEnd()).join('');
  const exists = others.length === 1 ? `another ${what} is` : `${others.length} other ${what}s are`;
  terminal.warn(`berth: ${exists} called ${made.name} too, so name each by its id:${lines}`);
}

/** By id, else by name or another text of its own. @throws CommandError when there is none, or several */
export async function findNamed<T extends { readonly id: string; readonly name?: string }>(
  items: AsyncIterable<T>,
  text: string,
  { what, list, also = () => [], detail }: ResourceKind<T>,
): Promise<T> {
  const all = await collect(items);
  const found = all.filter(({ id }) => id === text);
  // An id stands for its own resource, also where another one has it as its name.
  if (found.length === 0)
    found.push(...all.filter((each) => each.name === text || also(each).includes(text)));
  const [first, second] = found;
  if (first === undefined) {
    throw new CommandError(`there is no ${what} ${text}`, { next: list, exit_code: EXIT.not_found });
  }
  if (second === undefined) return first;
  const candidates = found.map((each) => `\n  ${each.id}  ${detail?.(each) ?? each.name ?? ''}`).join('');
  throw new CommandError(`“${text}” stands for several ${what}s; name one by its id:${candidates}`, {
    exit_code: EXIT.usage,
  });
}

const TRIES = 10;

/** @param change makes one call with `if_match` */
export async function changeCurrent<K extends OperationId, T>(
  berth: Berth,
  read: K,
  input: Input<K>,
  change: (now: Answer<K>, if_match: string | undefined) => Promise<T>,
): Promise<T> {
  for (let tried = 1; ; tried++) {
    let etag: string | undefined;
    const onEtag = (read_etag: string) => {
      etag = read_etag;
    };
    const answer = await berth.call(read, input, { onEtag });
    try {
      return await change(answer, etag);
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'PRECONDITION_FAILED' || tried === TRIES)
        throw error;
    }
  }
}

export type NameOf = (actor: string) => string;

/** An API key may not list members, so other accounts stay ids. @returns the id when no name is known */
export function namesOfActors({ session, terminal }: Pick<Call, 'session' | 'terminal'>): NameOf {
  if (terminal.format !== 'human') return (id) => id;
  const { profile } = session;
  return (id) => actorWords(id, profile !== undefined && profile.user_id === id ? profile.email : null);
}
