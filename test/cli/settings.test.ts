/** The settings of instances as options of create and set; against the API. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { apiForFile, type InstanceOut, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

describe('settings', () => {
  test('create takes them, show shows them, set changes them', async () => {
    const name = newName();
    await cli.done('create', name, '--idle-timeout', '15m', '--wake', '--keep', '5,3', '--auto-flush', '30s');
    const made = await cli.json<object>('show', name);
    assert.partialDeepStrictEqual(made, {
      ...{ idle_timeout_seconds: 900, wake_on_connect: true, auto_flush_seconds: 30 },
      generations_keep: { last: 5, daily_days: 3 },
    });
    const shown = await cli.done('show', name);
    assert.match(shown, /^idle-timeout +15m: stops after this time without use$/m);
    assert.match(shown, /^wake +on: a connection starts the VM$/m);
    assert.match(shown, /^keep +5,3: the last 5 generations, then one a day for 3 days$/m);
    const off = ['--idle-timeout', 'off', '--no-wake', '--keep', '2', '--auto-flush', 'off'];
    const changed = await cli.json<object>('set', name, ...off);
    assert.partialDeepStrictEqual(changed, {
      ...{ idle_timeout_seconds: null, wake_on_connect: false, auto_flush_seconds: null },
      generations_keep: { last: 2, daily_days: 0 },
    });
    const same = await cli.json<object>('set', name, '--name', newName());
    assert.partialDeepStrictEqual(same, { wake_on_connect: false, auto_flush_seconds: null });
  });

  test('what makes no sense is said before the server is asked', async () => {
    assert.match(
      await cli.fails(2, 'set', 'x', '--wake', '--no-wake'),
      /--wake and --no-wake exclude each other\n/,
    );
    assert.match(
      await cli.fails(2, 'set', 'x', '--keep', 'all'),
      /--keep takes LAST or LAST,DAYS .*, not all\n/,
    );
    assert.match(
      await cli.fails(2, 'set', 'x', '--idle-timeout', 'soon'),
      /--idle-timeout takes a duration such as 30s/,
    );
  });
});

describe('sizes', () => {
  test('change while it is stopped; a running VM is stopped for it after one question, and started again', async () => {
    const { name } = await api.instance(who);
    const sizes = ['--cpus', '3', '--memory', '2g', '--disk', '20'];
    assert.match(await cli.done('set', name, ...sizes), /^cpus +3\nmemory +2 GiB\ndisk +20 GiB,/m);
    const on = await instanceIn(api, who, 'running');
    const said = await cli.fails(2, 'set', on.name, '--cpus', '3', '--disk', '30g');
    assert.match(
      said,
      new RegExp(
        `${on.name} is running. .*must be stopped\n {2}next: berth set ${on.name} --cpus 3 --disk 30g --yes\n$`,
      ),
    );
    const setting = cli.start(['set', on.name, '--cpus', '3', '--disk', '30g', '--yes']);
    await api.agent.assigned(on.id, 'it is to stop', ({ desired }) => desired === 'stopped');
    await api.agent.stopped(on.id);
    await api.agent.assigned(on.id, 'it starts again', ({ desired }) => desired === 'running');
    await api.agent.ready(on.id);
    const { code, out, err } = await setting.ended;
    assert.equal(code, 0, err);
    assert.match(out, /^state +running$/m);
    assert.match(out, /^disk +30 GiB,/m);
    assert.doesNotMatch(
      await cli.fails(5, 'set', on.name, '--name', name),
      /next:/,
      'a taken name is not that',
    );
  });
});

describe('a disk', () => {
  test('grows while the VM runs; the answer says so', async () => {
    const { id, name } = await instanceIn(api, who, 'running');
    const setting = cli.start(['set', name, '--disk', '30g']);
    const { spec } = await api.agent.assigned(id, 'it grows', ({ disk_grows }) => disk_grows);
    assert.match(
      await cli.done('show', name),
      /^disk +30 GiB.*\n +The root file system grows to 30 GiB when/m,
    );
    await api.agent.observe(id, { kind: 'disk_grown', disk_bytes: spec.disk_bytes });
    const { code, out, err } = await setting.ended;
    assert.deepEqual([code, err], [0, '']);
    assert.match(
      out,
      /\nstate +running\n.*\ndisk +30 GiB,.*\nThe root file system has grown to 30 GiB\.\n$/s,
    );
  });

  test('of a stopped VM grows at its next boot', async () => {
    const { name } = await api.instance(who);
    const said = await cli.done('set', name, '--disk', '30g');
    assert.match(said, /The root file system grows to 30 GiB when the guest boots\./);
    assert.equal((await cli.json<InstanceOut>('show', name)).disk.growth, 'next_boot');
  });
});

describe('--user-data', () => {
  const scriptOf = async (instance_id: InstanceOut['id']) => {
    const rows = api.db.selectFrom('user_data').select('script').where('instance_id', '=', instance_id);
    return (await rows.executeTakeFirstOrThrow()).script;
  };

  test('is a file, or stdin', async () => {
    const script = '#!/bin/sh\necho ä\n';
    const file = join(cli.home, 'setup.sh');
    writeFileSync(file, script);
    const { id } = await cli.json<InstanceOut>('create', newName(), '--user-data', file);
    assert.equal(await scriptOf(id), script);
    const piped = await cli.run(['create', newName(), '--user-data', '-', '--json'], script);
    assert.equal(await scriptOf((JSON.parse(piped.out) as InstanceOut).id), script);
  });

  test('a file that is not there, too large or no text', async () => {
    const file = join(cli.home, 'wrong');
    assert.match(
      await cli.fails(2, 'create', newName(), '--user-data', file),
      /--user-data: there is no file .*wrong/,
    );
    writeFileSync(file, Buffer.alloc(64 * 1024 + 1, 'x'));
    assert.match(
      await cli.fails(1, 'create', newName(), '--user-data', file),
      /wrong has more than 64 KiB\n/,
    );
    writeFileSync(file, Buffer.from([0x23, 0xff]));
    assert.match(await cli.fails(1, 'create', newName(), '--user-data', file), /wrong is not UTF-8 text\n/);
  });
});
