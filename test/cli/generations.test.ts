/** Generations on the command line, against the API: list, pin, name, restore, fork. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeGenerations } from '../support/generations.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

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
    assert.match(list, /^GENERATION +CREATED +MADE BY +SAVED +UPLOADED +CONSISTENCY +PINNED +NAME\n/);
    assert.match(
      list,
      /\n3 \* +\d{4}-\d\d-\d\d \d\d:\d\d \((?:just now|\d+ s ago)\) +flush +64 KiB +2\.9 KiB /,
    );
    assert.equal(await cli.done('generation', 'ls', name, '-q'), '3\n2\n1\n');
    const csv = ['--format', 'csv', '--columns', 'generation,made-by'];
    assert.equal(
      await cli.done('generations', name, ...csv),
      'generation,made-by\n3,flush\n2,flush\n1,flush\n',
    );
    const [newest] = await cli.json<{ generation: number; bytes: number }[]>('generations', name);
    assert.deepEqual([newest?.generation, newest?.bytes], [3, 3000]);
  });

  test('none: what makes one', async () => {
    const { name } = await api.instance(who);
    assert.equal(
      await cli.done('generations', name),
      `No generations yet. The first is made while it runs: berth start ${name}\n`,
    );
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

  test('are restored, forked, pinned and renamed by their names too', async () => {
    const { name } = await withGenerations(3);
    await cli.done('generation', 'name', name, '1', 'good');
    assert.equal(await cli.done('__complete', 'restore', name, ''), '3\n2\n1\ngood\n');
    assert.match(await cli.done('generation', 'pin', name, 'good'), /generation 1 is pinned\.\n$/);
    assert.match(await cli.done('fork', name, newName(), '--generation', 'good'), /as of generation 1\. /);
    assert.match(await cli.done('restore', name, 'good'), /the files of generation 1 again/);
    assert.match(
      await cli.done('generation', 'name', name, 'good', 'old'),
      /generation 1 is called old\.\n$/,
    );
  });

  test('a name that several have is refused with their numbers', async () => {
    const { name } = await withGenerations(2);
    for (const number of ['1', '2']) await cli.done('generation', 'name', name, number, 'good');
    assert.match(
      await cli.fails(2, 'restore', name, 'good'),
      /“good” stands for several generations of .*: 2, 1\n/,
    );
  });

  test('one that is not there is told with the list of those that are', async () => {
    const { name } = await withGenerations(1);
    const next = new RegExp(`no generation 9: .*\n {2}next: berth generations ${name}\n$`);
    assert.match(await cli.fails(3, 'restore', name, '9'), next);
    assert.match(await cli.fails(3, 'fork', name, newName(), '--generation', '9'), next);
    const pin = await cli.fails(3, 'generation', 'pin', name, '9');
    assert.match(pin, new RegExp(`next: berth generations ${name}\n$`));
    assert.match(
      await cli.fails(3, 'restore', name, 'last'),
      new RegExp(`${name} has no generation called last\\n {2}next: berth generations ${name}\n$`),
    );
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

  test('of a running VM stops it after one question, restores, and starts it again', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    await api.agent.commit(id, 2);
    const said = await cli.fails(2, 'restore', name, '1');
    assert.match(said, new RegExp(`${name} is running. .*\n {2}next: berth restore ${name} 1 --yes\n$`));
    const restoring = cli.start(['restore', name, '1', '-y']);
    await api.agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
    await api.agent.stopped(id);
    await api.agent.assigned(id, 'it starts again', ({ desired }) => desired === 'running');
    await api.agent.ready(id);
    const { out, err } = await restoring.ended;
    assert.equal(
      out,
      `${name} has the files of generation 1 again, as generation 3. It runs again: berth ssh ${name}\n`,
      err,
    );
    assert.match(await cli.done('generations', name), /^3 \* .*restored from 1 +- +- /m);
  });

  test('asks on a terminal before it stops a VM, and a no changes nothing', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    const restoring = cli.onTerminal(['restore', name, '1']);
    await until('it asks', () => restoring.out().includes('and start it again? (yes/no)'));
    restoring.child.stdin?.write('no\r');
    const { code, out } = await restoring.ended;
    assert.deepEqual([code, out.includes(`${name} was not changed`)], [1, true], out);
    assert.match(await cli.done('show', name), /^state +running$/m);
  });
});

describe('flush', () => {
  test('names and pins the generation that it makes', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    const flushing = cli.start(['flush', name, '--name', 'before-upgrade', '--pin']);
    const flush_id = await api.agent.askedToFlush(id);
    await api.agent.commit(id, 1);
    await api.agent.endFlush(flush_id);
    const { out, err } = await flushing.ended;
    assert.match(out, /saved as generation 1, .*, named before-upgrade, pinned\n$/, err);
    assert.match(await cli.done('generations', name), /^1 \* .* yes +before-upgrade$/m);
  });

  test('with nothing to save names the current generation, but takes no other name from it', async () => {
    const { name } = await withGenerations(2);
    assert.match(
      await cli.done('flush', name, '--name', 'first'),
      /all saved already, as generation 2, named first/,
    );
    const next = new RegExp(`named first\n {2}next: berth generation name ${name} 2 TEXT\n$`);
    assert.match(await cli.fails(5, 'flush', name, '--name', 'second'), next);
    const empty = await api.instance(who);
    assert.match(await cli.fails(5, 'flush', empty.name, '--pin'), /has written nothing yet/);
  });
});

describe('fork', () => {
  test('begins with the last generation, or the one that is named', async () => {
    const { name } = await withGenerations(3);
    const [last, older] = [newName(), newName()];
    assert.equal(
      await cli.done('fork', name, last),
      `Created ${last}, a fork of ${name} as of generation 3. Start it: berth start ${last}\n`,
    );
    const made = await cli.json<InstanceOut>('fork', name, older, '--generation', '2');
    assert.deepEqual([made.name, made.disk.generation], [older, 2]);
  });

  test('flushes a running parent first, and says so', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    const made = newName();
    const forking = cli.start(['fork', name, made]);
    const flush_id = await api.agent.askedToFlush(id);
    await api.agent.commit(id, 1);
    await api.agent.endFlush(flush_id);
    const { out, err } = await forking.ended;
    const sentence = `Created ${made}, a fork of ${name} as of generation 1. Start it: berth start ${made}\n`;
    assert.equal(out, `Flushed ${name} first: 4 KiB saved as generation 1.\n${sentence}`, err);
    assert.match(await cli.done('show', made), new RegExp(`^forked from +${name}, generation 1$`, 'm'));
    assert.match(await cli.done('generations', made), new RegExp(`forked from ${name}, generation 1 +- +- `));
  });

  test('with --no-flush says what the fork lacks', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    await api.agent.heartbeat([{ instance_id: id, dirty_bytes: 12 * 2 ** 20 }]);
    const out = await cli.done('fork', name, newName(), '--no-flush');
    assert.match(
      out,
      new RegExp(` as of generation 1, without 12 MiB that ${name} had not saved\\. Start it`),
    );
    assert.match(await cli.fails(2, 'fork', name, 'x', '--no-flush', '--generation', '1'), /omit --no-flush/);
  });

  test('of a VM that ends meanwhile begins with what is saved', async () => {
    const { name, id } = await instanceIn(api, who, 'running');
    await api.agent.commit(id, 1);
    const forking = cli.start(['fork', name, newName()]);
    await api.agent.failFlush(await api.agent.askedToFlush(id), 'vm_gone', 'The VM has ended.');
    const { code, out } = await forking.ended;
    assert.equal(code, 0);
    assert.match(out, new RegExp(`^Created .* a fork of ${name} as of generation 1\\.`));
  });

  test('of a disk without a generation: what makes one; a taken name is not that', async () => {
    const off = await api.instance(who);
    const next = new RegExp(`next: berth start ${off.name}\n`);
    assert.match(await cli.fails(5, 'fork', off.name, newName()), next);
    const on = await instanceIn(api, who, 'running');
    const flush = new RegExp(`next: berth flush ${on.name}\n`);
    assert.match(await cli.fails(5, 'fork', on.name, newName(), '--no-flush'), flush);
    const { name } = await withGenerations(1);
    assert.match(await cli.fails(5, 'fork', name, name), /next: berth ls, and another name/);
  });
});
