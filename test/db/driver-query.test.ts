/** What the driver is answered is its asker's, and stays with nobody else. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import pg from 'pg';
import { ask, type Done, ForgettingQuery } from '../../src/db/driver-query.ts';
import { TogetherQuery } from '../../src/db/together-query.ts';
import { startDatabase, type TestDatabase } from '../support/database.ts';

let database: TestDatabase;
let client: pg.Client;
before(async () => {
  database = await startDatabase();
  // The driver wraps the callback of a query that may take only so long.
  client = new pg.Client({ connectionString: database.url, query_timeout: 60_000 });
  await client.connect();
});
after(async () => {
  await client.end();
  await database.close();
});

const ROWS = { text: 'select n from generate_series(1, $1::int) as n', values: [3] };
const KINDS = {
  'one statement': (done: Done) => new ForgettingQuery(ROWS, undefined, done),
  'several statements': (done: Done) => new TogetherQuery([{ text: 'begin' }, ROWS], done),
};

/** What it holds, as text. */
function held(query: object): string {
  const { _result, _results, values } = query as Record<string, unknown>;
  return JSON.stringify({ _result, _results, values });
}

for (const [kind, make] of Object.entries(KINDS)) {
  test(`${kind}: the rows are answered, and the query holds them no more`, async () => {
    let sent: object = {};
    const result = (await ask(
      (done) => {
        sent = make(done);
        return sent;
      },
      (query) => client.query(query as pg.Submittable),
    )) as pg.QueryResult<{ n: number }>;
    await client.query('rollback');
    assert.deepEqual(
      result.rows.map(({ n }) => n),
      [1, 2, 3],
    );
    assert.doesNotMatch(held(sent), /"n":|values/);
  });
}

test('an error is told once, also when more is said of it', async () => {
  const told: (Error | null)[] = [];
  const error = new Error('first');
  let done: Done = () => undefined;
  const answer = ask(
    (given) => {
      done = given;
      return {};
    },
    () => undefined,
  ).catch((failed: Error) => told.push(failed));
  done(error, undefined);
  done(new Error('second'), undefined);
  done(null, { rows: [] });
  await answer;
  assert.deepEqual(told, [error]);
});

test('what comes after a timeout is told nobody, and kept nowhere', async () => {
  const told: (Error | null)[] = [];
  const late = new ForgettingQuery(ROWS, undefined, (error) => told.push(error));
  const wire = (client as unknown as { readonly connection: Parameters<typeof late.handleError>[1] })
    .connection;
  const timeout = new Error('Query read timeout');
  late.handleError(timeout, wire);
  // As the driver does once it has said so.
  Object.assign(late, { callback: () => undefined });
  late.handleRowDescription({ fields: [{ name: 'n', dataTypeID: 23 }] });
  late.handleDataRow({ fields: ['7'] });
  late.handleCommandComplete({ text: 'SELECT 1' }, wire);
  late.handleReadyForQuery(wire);
  assert.deepEqual(told, [timeout]);
  assert.doesNotMatch(held(late), /"n":/);
});
