/** The values of --columns: runs the command up to its list, which knows its columns. It may only read. */
import type { Asked } from './complete-values.ts';
import { parse } from './parse.ts';
import { columnNames, type Listing } from './table.ts';
import { Terminal } from './terminal.ts';

const RUN_MS = 1_500;

/** Not an error: the list was reached. */
class Reached extends Error {
  readonly columns: readonly string[];
  constructor(columns: readonly string[]) {
    super();
    this.columns = columns;
  }
}

/** Prints and asks nothing. */
class ColumnReader extends Terminal {
  constructor() {
    super('records');
  }
  override get interactive(): boolean {
    return false;
  }
  override list<T>(_items: readonly T[], listing: Listing<T>): void {
    throw new Reached(columnNames(listing));
  }
  override write(): void {}
  override warn(): void {}
}

/** @param before the words after the command's name, up to `--columns`; @param typed `name,st` */
export async function columnsFor(
  { command, session }: Asked,
  before: readonly string[],
  typed: string,
): Promise<readonly string[]> {
  if (command.on_server === true) return [];
  const { options, args, rest } = parse(command, before.slice(0, -1));
  const signal = AbortSignal.timeout(RUN_MS);
  const call = { options, args, rest, signal, session: session().forReading(), terminal: new ColumnReader() };
  const late = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  const found = await Promise.race([command.run(call), late]).catch((error: unknown) => error);
  if (!(found instanceof Reached)) return [];
  const chosen = typed.split(',').slice(0, -1);
  const left = found.columns.filter((each) => !chosen.includes(each));
  return left.map((each) => [...chosen, each].join(','));
}
