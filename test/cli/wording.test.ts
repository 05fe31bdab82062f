/** What errors and lists say: names, times and units as people read them, and the next step. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const PASSWORD = 'correct horse battery';

async function somebody() {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  return { who, cli: new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key }) };
}

describe('an error', () => {
  test('about a VM that does not run names the instance, also as one of several', async () => {
    const { cli } = await somebody();
    const [one, other] = [newName(), newName()];
    await cli.done('create', one);
    await cli.done('create', other);
    const stopped = new RegExp(
      `^berth: ${one} is stopped\\. Start it first\\.\\n {2}next: berth start ${one}\\n$`,
    );
    assert.match(await cli.fails(5, 'suspend', one), stopped);
    assert.match(await cli.fails(5, 'suspend', one, other), stopped);
    assert.match(
      await cli.fails(5, 'exec', one, 'true'),
      new RegExp(`^berth: ${one} is (stopped|not running)`),
    );
  });

  test('about an invitation has the local time, and about the last owner what to do first', async () => {
    const who = await api.person({ password: PASSWORD });
    const cli = new Cli({ TZ: 'Europe/Berlin' });
    const by = (...args: string[]) => cli.run([...args, '--password-stdin'], PASSWORD);
    await by('login', '--url', api.origin, '--email', who.email);
    await by('invitation', 'create', 'ada@example.org');
    const again = await by('invitation', 'create', 'ada@example.org');
    assert.match(again.err, /is invited already \(inv_\w+, until \d{4}-\d\d-\d\d \d\d:\d\d\)\./);
    await api.person({ org_id: who.org_id, role: 'member' });
    for (const words of [
      ['member', 'rm', who.email],
      ['member', 'role', who.email, 'admin'],
      ['account', 'rm', '--yes', who.email],
    ]) {
      const { code, err } = await by(...words);
      assert.equal(code, 5, err);
      assert.match(
        err,
        /The last owner of .*\n {2}next: berth member role MEMBER owner, with another member\n$/,
      );
    }
  });

  test('about a port, a hostname or a file says which there is not', async () => {
    const { cli } = await somebody();
    const name = newName();
    await cli.done('create', name);
    await cli.done('port', 'add', name, '8080');
    assert.match(
      await cli.fails(3, 'port', 'show', name, '1'),
      new RegExp(`there is no HTTP port 1\\n {2}next: berth port ls ${name}`),
    );
    assert.match(
      await cli.fails(3, 'port', 'hostname', 'rm', name, '8080', 'app.example.com'),
      new RegExp(`port 8080 has no hostname app\\.example\\.com\\n {2}next: berth port show ${name} 8080`),
    );
    assert.match(
      await cli.fails(2, 'ssh-key', 'add', '/nonexistent'),
      /FILE: there is no file \/nonexistent\n/,
    );
  });
});

test('set replaces all labels, and removes them', async () => {
  const { cli } = await somebody();
  const name = newName();
  await cli.done('create', name, '--label', 'a=1', '--label', 'b=2');
  await cli.done('set', name, '--label', 'c=3');
  const labels = async () => (await cli.json<{ labels: object }>('show', name)).labels;
  assert.deepEqual(await labels(), { c: '3' });
  await cli.fails(2, 'set', name, '--no-labels', '--label', 'd=4');
  await cli.done('set', name, '--no-labels');
  assert.deepEqual(await labels(), {});
});

test('a list of API keys says whose each is', async () => {
  const { cli } = await somebody();
  await cli.done('service-account', 'create', 'robot', '--scope', 'instances:read');
  await cli.done('api-key', 'create', 'theirs', '--service-account', 'robot');
  await cli.done('api-key', 'create', 'mine');
  const listed = await cli.done('api-key', 'ls', '--columns', 'name,owner');
  assert.match(listed, /^theirs +robot \(service account\)$/m);
  assert.match(listed, /^mine +you$/m);
});

test('the overview of the help fits a terminal of 80 columns, and keeps titles apart from names', async () => {
  const { out } = await new Cli().run(['help']);
  const all = out.slice(out.indexOf('All commands')).split('\n').slice(1, -2);
  assert.ok(all.length > 15);
  assert.deepEqual(
    all.filter((line) => line.length > 80),
    [],
  );
  assert.match(out, /^ {2}HTTP ports {8}port add\|ls/m);
});
