/** Generations on the command line, against the API: list, pin, name, restore, fork. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeGenerations } from '../support/generations.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

async function withGenerations(count: number): Promise<InstanceOut> {
  const instance = await api.instance(who);
  await makeGenerations(api.db, instance.id, count);
  return instance;
}

describe('generations', () => {
  test('are listed newest first, for people, as JSON and as numbers', async () => {
    const { name } = await withGenerations(3);
    const list = await cli.done('generations', name);
    assert.match(list, /^GENERATION +MADE +SAVED +CONSISTENCY +PINNED +NAME\n3 \* +\S+ m?s ago +2\.9 KiB /);
    assert.equal(await cli.done('generation', 'ls', name, '-q'), '3\n2\n1\n');
    const [newest] = await cli.json<{ generation: number; bytes: number }[]>('generations', name);
    assert.deepEqual([newest?.generation, newest?.bytes], [3, 3000]);
  });

  test('none: what makes one', async () => {
    const { name } = await api.instance(who);
    assert.equal(await cli.done('generations', name), `None yet. Make one: berth flush ${name}\n`);
  });

  test('are pinned and named, and neither any more', async () => {
    const { name } = await withGenerations(2);
    assert.equal(await cli.done('generation', 'pin', name, '1'), `${name}: generation 1 is pinned.\n`);
    await cli.done('generation', 'name', name, '1', 'before the upgrade');
    assert.match(await cli.done('generations', name), /^1 .* yes +before the upgrade$/m);
    assert.match(await cli.done('generation', 'name', name, '1'), /generation 1 has no name\.\n$/);
    const made = await cli.json<object>('generation', 'unpin', name, '1');
    assert.partialDeepStrictEqual(made, { generation: 1, pinned: false, name: null });
  });

  test('one that is not there is told with the list of those that are', async () => {
    const { name } = await withGenerations(1);
    const next = new RegExp(`no generation 9: .*\n {2}next: berth generations ${name}\n$`);
    assert.match(await cli.fails(3, 'restore', name, '9'), next);
    assert.match(await cli.fails(3, 'fork', name, newName(), '--generation', '9'), next);
    const pin = await cli.fails(3, 'generation', 'pin', name, '9');
    assert.match(pin, new RegExp(`next: berth generations ${name}\n$`));
    assert.match(await cli.fails(2, 'restore', name, 'last'), /a generation is a number .*, not last\n/);
  });
});

describe('restore', () => {
  test('makes a new generation of an older one', async () => {
    const { name } = await withGenerations(3);
    assert.equal(
      await cli.done('restore', name, '1'),
      `${name} has the files of generation 1 again, as generation 4. Start it: berth start ${name}\n`,
    );
    assert.equal(await cli.done('generations', name, '-q'), '4\n3\n2\n1\n');
  });

  test('while the VM runs, what to type first', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    const said = await cli.fails(5, 'restore', name, '1');
    assert.match(said, new RegExp(`The VM is running. .*\n {2}next: berth stop ${name}\n$`));
  });
});

describe('fork', () => {
  test('begins with the last generation, or the one that is named', async () => {
    const { name } = await withGenerations(3);
    const [last, older] = [newName(), newName()];
    assert.equal(
      await cli.done('fork', name, last),
      `${last} is a fork of ${name}, generation 3. Start it: berth start ${last}\n`,
    );
    const made = await cli.json<InstanceOut>('fork', name, older, '--generation', '2');
    assert.deepEqual([made.name, made.disk.generation], [older, 2]);
  });

  test('of a disk without a generation: what makes one; a taken name is not that', async () => {
    const off = await api.instance(who);
    assert.match(
      await cli.fails(5, 'fork', off.name, newName()),
      new RegExp(`next: berth start ${off.name}\n`),
    );
    const on = await instanceIn(api, who, 'running');
    assert.match(
      await cli.fails(5, 'fork', on.name, newName()),
      new RegExp(`next: berth flush ${on.name}\n`),
    );
    const { name } = await withGenerations(1);
    assert.match(await cli.fails(5, 'fork', name, name), /next: berth ls, and another name/);
  });
});
