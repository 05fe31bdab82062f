/**
 * The driver's query, whose answer belongs to who asked and to nobody else. The driver keeps a query's callback as a
 * function literal that it assigns to a property, and such functions V8 allocates among old objects
 * (`CheckAssigningFunctionLiteralToProperty` in its parser): dead or not, each holds whatever it refers to until the next
 * full collection, and by the query and the promise that was each row of each answer. So nothing of an answer,
 * or of what was asked, stays with either.
 */
import pg from 'pg';

/** What the driver keeps to itself of a connection … */
export interface Wire {
  readonly submittedNamedStatements: Record<string, string>;
  readonly stream: { write(bytes: Buffer): void };
  describe(message: object): void;
  sync(): void;
  _send(message: Buffer): void;
}
/** … and of a query. */
export interface QueryParts {
  readonly name: string | undefined;
  readonly text: string;
  _result: { _types?: unknown };
  _results: unknown;
  values: unknown;
  submit(wire: Wire): Error | null;
  handleRowDescription(message: unknown): void;
  handleDataRow(message: unknown): void;
  handleCommandComplete(message: unknown, wire: Wire): void;
  handleError(error: Error, wire: Wire): void;
  handleReadyForQuery(wire: Wire): void;
}

export interface Statement {
  readonly text: string;
  /** What it is prepared under. */
  readonly name?: string | undefined;
  readonly values?: readonly unknown[];
}
export type Done = (error: Error | null, result: unknown) => void;
/** `extended`: not the simple protocol, which is a Sync of its own. */
export type Config = Statement & { readonly queryMode?: 'extended' };

const Query = pg.Query as unknown as new (config: Config, values: undefined, done: Done) => QueryParts;

const Result = pg.Result as unknown as new () => { _types?: unknown };

/** After its end it holds nothing of what it was asked with and answered. */
export class ForgettingQuery extends Query {
  override handleError(error: Error, wire: Wire): void {
    super.handleError(error, wire);
    this.#forget();
  }

  override handleReadyForQuery(wire: Wire): void {
    super.handleReadyForQuery(wire);
    this.#forget();
  }

  /** What comes late, after a timeout, finds a result. */
  #forget(): void {
    this._result = new Result();
    this._results = this._result;
    this.values = undefined;
  }
}

/** Sends the query that `make` makes, and resolves to what it is answered. */
export function ask(make: (done: Done) => object, send: (query: object) => unknown): Promise<unknown> {
  return new Promise((resolve, reject) => {
    send(make(once(resolve, reject)));
  });
}

/** A function of its own: within the one above it would hold what `make` goes by, the statement with its values. */
function once(resolve: (result: unknown) => void, reject: (error: Error) => void): Done {
  let asker: { resolve(result: unknown): void; reject(error: Error): void } | null = { resolve, reject };
  return (error, result) => {
    const told = asker;
    asker = null;
    if (error) told?.reject(error);
    else told?.resolve(result);
  };
}
