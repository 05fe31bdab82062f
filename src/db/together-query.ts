/**
 * Statements that go to PostgreSQL before one Sync of the extended protocol: one write there, one answer back, and all or
 * nothing. The first that fails makes PostgreSQL skip those behind it; where no BEGIN stands before them they are a
 * transaction of their own, which the Sync commits.
 * https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-PIPELINING
 */
import {
  type Config,
  type Done,
  ForgettingQuery,
  type QueryParts,
  type Statement,
  type Wire,
} from './driver-query.ts';

export class TogetherQuery extends ForgettingQuery {
  #queries: readonly QueryParts[];
  /** How many are answered. */
  #answered = 0;
  /** Why one of them cannot be sent, or its answer not be read. */
  #failed: Error | null = null;

  constructor(statements: readonly [Statement, ...Statement[]], done: Done) {
    const configs = statements.map((statement): Config => ({ ...statement, queryMode: 'extended' }));
    super(configs[0] as Config, undefined, done);
    const noted: Done = (error, result) => {
      this.#failed = error;
      this._results = result;
    };
    this.#queries = configs.map((config) => new ForgettingQuery(config, undefined, noted));
    // The driver learns from these which statement was prepared, or was not.
    Object.defineProperties(this, {
      name: { get: () => this.#now?.name },
      text: { get: () => this.#now?.text },
    });
  }

  get #now(): QueryParts | undefined {
    return this.#queries[this.#answered];
  }

  /** Only the last one's rows are wanted. */
  get #isLast(): boolean {
    return this.#answered === this.#queries.length - 1;
  }

  override submit(wire: Wire): Error | null {
    const messages: Buffer[] = [];
    const nothing = () => undefined;
    const gathering: Wire = Object.create(wire, {
      _send: { value: (message: Buffer) => messages.push(message) },
      sync: { value: nothing },
    });
    const withoutRows: Wire = Object.create(gathering, { describe: { value: nothing } });
    const last = this.#queries.length - 1;
    for (const [index, query] of this.#queries.entries()) {
      query._result._types = this._result._types;
      const refused = query.submit(index === last ? gathering : withoutRows) ?? this.#failed;
      if (refused) return refused;
    }
    wire.stream.write(Buffer.concat(messages));
    wire.sync();
    return null;
  }

  override handleRowDescription(message: unknown): void {
    if (this.#isLast) this.#now?.handleRowDescription(message);
  }

  override handleDataRow(message: unknown): void {
    if (this.#isLast) this.#now?.handleDataRow(message);
  }

  override handleCommandComplete(message: unknown, wire: Wire): void {
    if (this.#isLast) this.#now?.handleCommandComplete(message, wire);
    else this.#answered += 1;
  }

  /** Those behind the one that failed were not prepared either. */
  override handleError(error: Error, wire: Wire): void {
    for (const { name } of this.#queries.slice(this.#answered)) {
      if (name !== undefined) delete wire.submittedNamedStatements[name];
    }
    super.handleError(error, wire);
  }

  override handleReadyForQuery(wire: Wire): void {
    this.#now?.handleReadyForQuery(wire);
    this.#queries = [];
    if (this.#failed) super.handleError(this.#failed, wire);
    else super.handleReadyForQuery(wire);
  }
}
