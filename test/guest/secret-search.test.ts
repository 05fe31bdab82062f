/**
 * A search for the value of a secret: in a guest's memory, its disk, generations, forks, the data folder, every row of the database,
 * what the processes print, and what they leave when they crash. The same search finds the placeholder and the host's name.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { filesWith, inMemory } from '../support/search-bytes.ts';
import { type SecretInstallation, startBesideServers } from '../support/secret-installation.ts';
import { fieldOf } from '../support/secret-lab.ts';
import { until } from '../support/waiting.ts';

const HOST = 'api.test';

describe('the value of a secret', { skip: CANNOT_BOOT_GUESTS, timeout: 900_000 }, () => {
  const value = randomBytes(24).toString('hex');
  let lab: SecretInstallation | undefined;
  let berth: Installation;
  let guest: GuestInstance;
  let fork: GuestInstance;
  let placeholder: string;
  /** As it is, in hexadecimal as PostgreSQL shows bytes, and in base64 as calls to a guest carry it. */
  const needles = () => [
    value,
    Buffer.from(value).toString('hex'),
    Buffer.from(value).toString('base64').slice(0, -4),
  ];

  before(async () => {
    lab = await startBesideServers();
    ({ berth } = lab);
    guest = await GuestInstance.running(berth, 'web');
    const path = `${guest.path}/secrets/NEEDLE`;
    await berth.client.expect(204, 'PUT', path, { value, hosts: [HOST] });
    // Refused requests are told of, too.
    await berth.client.expect(400, 'PUT', path, { value: `${value}\n`, hosts: [HOST] });
    await berth.client.expect(400, 'PUT', path, { value, hosts: [HOST], more: value });
    const seen = async () => (await berth.ssh.run(guest.target, 'echo $BERTH_SECRET_NEEDLE')).stdout.trim();
    placeholder = await until('a session has the placeholder', seen, { timeout_ms: 30_000, every_ms: 50 });
  });
  after(() => lab?.close());

  test('is in no memory of a guest that uses it, before and after a suspend', async () => {
    await guest.sh(
      'env > /root/kept; env > /run/kept; set -- "$BERTH_SECRET_NEEDLE"; curl -sm 10 -H "X-Key: $1" https://api.test/used; sync',
    );
    const used = lab?.servers.got.find(({ url }) => url === '/used') ?? assert.fail('nothing arrived');
    assert.deepEqual(fieldOf(used, 'x-key'), [value]);
    assert.deepEqual(inMemory(guest.qemu.pid, [placeholder, ...needles()]), [true, false, false, false]);
    await guest.suspend();
    await guest.start();
    // All of its memory came from the saved image.
    assert.deepEqual(inMemory(guest.qemu.pid, [placeholder, ...needles()]), [true, false, false, false]);
  });

  test('is in no generation of its disk, as exported, nor of that of a fork with the values', async () => {
    await guest.flush();
    const body = { name: 'forked', secrets: true };
    const { id } = await berth.client.expect<{ id: string }>(201, 'POST', `${guest.path}/fork`, body);
    fork = GuestInstance.of(berth, id);
    await guest.stop();
    await fork.start();
    await fork.learnHost();
    assert.equal(await fork.sh('echo $BERTH_SECRET_NEEDLE'), placeholder);
    assert.deepEqual(inMemory(fork.qemu.pid, [placeholder, ...needles()]), [true, false, false, false]);
    await fork.stop();
    const folder = join(berth.data_dir, 'exported');
    mkdirSync(folder);
    const heads: string[] = [];
    for (const each of [guest, fork]) {
      const { data } = await berth.client.expect<{ data: { generation: number }[] }>(
        200,
        'GET',
        `${each.path}/generations`,
      );
      const paths = data.map(({ generation }) => [
        String(generation),
        join(folder, `${each.id}-${generation}`),
      ]);
      heads.push(paths[0]?.[1] ?? '');
      for (const [generation = '', path = ''] of paths) {
        const { code, err } = await berth.cli('disk', 'export', each.id, path, '--generation', generation);
        assert.equal(code, 0, err);
      }
    }
    const [found = [], ...others] = filesWith(folder, [placeholder, ...needles()]);
    rmSync(folder, { recursive: true });
    assert.deepEqual(
      heads.filter((path) => !found.includes(path)),
      [],
      'the search finds the placeholder in the last generation of both',
    );
    assert.deepEqual(others, [[], [], []]);
  });

  test('is in no row of the database, no log, and no file of the data folder, also after every process was killed', async () => {
    for (const role of ['agent', 'control-plane', 'ingress'] as const) {
      const { pid } = berth.role(role);
      // A core dump, if this system makes one, goes where the process runs: into the data folder.
      execFileSync('prlimit', ['--core=unlimited', '--pid', String(pid)]);
      await berth.kill(role, 'SIGABRT');
      await berth.recovered(role);
    }
    await guest.start();
    assert.deepEqual(await tablesWith(HOST), ['audit_log', 'secrets']);
    for (const needle of needles()) assert.deepEqual(await tablesWith(needle), []);
    for (const needle of needles()) assert.ok(!berth.output.includes(needle));
    await berth.stop();
    // The database writes what it holds in memory when it stops.
    const [found = [], ...others] = filesWith(berth.data_dir, [HOST, ...needles()]);
    assert.ok(found.length > 0);
    assert.deepEqual(others, [[], [], []]);
    await berth.start();
  });

  test('is in no answer of the API, and no console log', async () => {
    const paths = ['secrets', 'vm', 'vm/console', 'ssh', 'ssh-keys', 'generations'].map(
      (each) => `${guest.path}/${each}`,
    );
    for (const path of [...paths, guest.path, '/v1/audit', '/v1/events', '/v1/notifications']) {
      const { status, body } = await berth.client.request('GET', path);
      const text = typeof body === 'string' ? body : JSON.stringify(body);
      assert.equal(status, 200, `${path}: ${text}`);
      assert.ok(!needles().some((needle) => text.includes(needle)), path);
    }
  });

  async function tablesWith(text: string): Promise<string[]> {
    const tables = await berth.sql(
      "select table_name as name from information_schema.tables where table_schema = 'public' order by 1",
    );
    const found: string[] = [];
    for (const { name } of tables) {
      const query = `select 1 from "${name}" t where position($1 in t::text) > 0 limit 1`;
      if ((await berth.sql(query, [text])).length > 0) found.push(String(name));
    }
    return found;
  }
});
