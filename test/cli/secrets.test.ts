/** Secrets on the command line. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { secretsOf } from '../../src/control-plane/secrets/seal-value.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey, type Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();

async function somebody(): Promise<{ cli: Cli; who: Person; id: InstanceId; kept: () => Promise<unknown> }> {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  const { id } = await api.instance(who, { name: 'web' });
  const kept = async () => {
    const found = (await secretsOf(api.db, api.context.secrets, [id])).get(id) ?? [];
    return found.map(({ name, hosts, value }) => ({ name, hosts, value }));
  };
  return { cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }), who, id, kept };
}

test('set takes the value from stdin, ls shows names and hosts, rm deletes; no output has the value', async () => {
  const { cli, kept } = await somebody();
  const list = () => cli.done('secret', 'ls', 'web');
  assert.match(await list(), /^web has no secrets\. Set one: berth secret set web SECRET --host HOST\n$/);
  const words = ['secret', 'set', 'web', 'API_KEY', '--host', 'api.example.com', '--host', '*.example.org'];
  const made = await cli.run(words, 'the-value\n');
  assert.deepEqual([made.code, made.err], [0, '']);
  assert.match(
    made.out,
    /^Set API_KEY of web, for api\.example\.com, \*\.example\.org\. .*BERTH_SECRET_API_KEY/,
  );
  const hosts = ['api.example.com', '*.example.org'];
  assert.deepEqual(await kept(), [{ name: 'API_KEY', hosts, value: 'the-value' }]);
  const shown = [made.out, await list(), await cli.done('secret', 'ls', 'web', '--json')];
  assert.match(shown[1] ?? '', /^API_KEY +api\.example\.com, \*\.example\.org +set +\d/m);
  for (const text of shown) assert.doesNotMatch(text, /the-value/);
  assert.equal(await cli.done('secret', 'ls', 'web', '-q'), 'API_KEY\n');
  assert.equal(
    await cli.done('secret', 'rm', 'web', 'API_KEY'),
    'Deleted API_KEY of web. New sessions do not have it.\n',
  );
  assert.deepEqual(await kept(), []);
  assert.match(await cli.fails(3, 'secret', 'rm', 'web', 'API_KEY'), /next: berth secret ls web/);
});

test('without --host a secret keeps its hosts; a new one needs some', async () => {
  const { cli, kept } = await somebody();
  assert.match(await cli.fails(2, 'secret', 'set', 'web', 'A'), /--host is missing/);
  await cli.run(['secret', 'set', 'web', 'A', '--host', 'a.example.com'], 'one');
  const again = await cli.run(['secret', 'set', 'web', 'A', '-q'], 'two');
  assert.equal(again.out, 'A\n');
  assert.deepEqual(await kept(), [{ name: 'A', hosts: ['a.example.com'], value: 'two' }]);
});

test('the value of a file; only one line break at its end is left out', async () => {
  const { cli, kept } = await somebody();
  const path = join(cli.home, 'value');
  writeFileSync(path, 'of a file\n');
  await cli.done('secret', 'set', 'web', 'A', '--host', 'a.example.com', '--from-file', path);
  assert.deepEqual(await kept(), [{ name: 'A', hosts: ['a.example.com'], value: 'of a file' }]);
  writeFileSync(path, 'two\nlines\n');
  const told = await cli.fails(2, 'secret', 'set', 'web', 'A', '--from-file', path);
  assert.match(told, /VALUE must not contain control characters/);
  assert.match(
    await cli.fails(2, 'secret', 'set', 'web', 'A', '--from-file', `${path}x`),
    /--from-file: there is no file/,
  );
});

test('a terminal asks for the value, and shows nothing of it', async () => {
  const { cli, kept } = await somebody();
  const asked = cli.onTerminal(['secret', 'set', 'web', 'A', '--host', 'a.example.com']);
  await until('it asks', () => /Value of A \(not shown\): /.test(asked.out()));
  asked.child.stdin?.write('typed-value\r');
  assert.equal((await asked.ended).code, 0);
  assert.doesNotMatch(asked.out(), /typed-value/);
  assert.deepEqual(await kept(), [{ name: 'A', hosts: ['a.example.com'], value: 'typed-value' }]);
});

test('what the server refuses is named as it was typed', async () => {
  const { cli } = await somebody();
  const set = (...words: string[]) =>
    cli.fails(2, 'secret', 'set', 'web', ...words, '--from-file', '/etc/hostname');
  assert.match(await set('lower', '--host', 'a.example.com'), /SECRET must be 1 to 64 of A to Z/);
  assert.match(await set('A', '--host', '10.0.0.1'), /--host: "10\.0\.0\.1" is/);
});

test('fork --secrets has the values, and without it the names', async () => {
  const { cli, who } = await somebody();
  const parent = await instanceIn(api, who, 'running');
  await api.agent.commit(parent.id, 1);
  await cli.run(['secret', 'set', parent.name, 'A', '--host', 'a.example.com'], 'v');
  const [having, without] = [newName(), newName()];
  await cli.done('fork', parent.name, having, '--no-flush', '--secrets');
  await cli.done('fork', parent.name, without, '--no-flush');
  assert.match(await cli.done('secret', 'ls', having), /^A +a\.example\.com +set/m);
  assert.match(await cli.done('secret', 'ls', without), /^A +a\.example\.com +none/m);
});
