/** Reads whole lists, and finds resources by id or name. */
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';

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

/** By id or by name. @throws CommandError when there is none, or several with the name */
export async function findNamed<T extends { readonly id: string; readonly name: string }>(
  items: AsyncIterable<T>,
  text: string,
  { what, list }: { readonly what: string; readonly list: string },
): Promise<T> {
  const found = (await collect(items)).filter(({ id, name }) => id === text || name === text);
  const [first, second] = found;
  const parts = { next: list, exit_code: EXIT.not_found };
  if (first === undefined) throw new CommandError(`there is no ${what} ${text}`, parts);
  if (second !== undefined) throw new CommandError(`several are called ${text}; give the id of one`, parts);
  return first;
}
