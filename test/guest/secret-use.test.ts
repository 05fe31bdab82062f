/** A secret from the API to a server on the internet: usual clients in a real guest, changes, and everything that a VM may go through. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { packClients, UNPACK } from '../support/guest-clients.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { type SecretInstallation, startBesideServers } from '../support/secret-installation.ts';
import { fieldOf, type SecretServers } from '../support/secret-lab.ts';
import { until } from '../support/waiting.ts';

const IN_EFFECT_MS = 2_000;
const PLACEHOLDER = /^berth-secret-[0-9a-f]{32}$/;

const PYTHON = `
import os, requests
headers = {"Authorization": "Bearer " + os.environ["BERTH_SECRET_KEY"]}
print(requests.post("https://api.test/python", headers=headers, data="hello").status_code)
`;
const NODE = `
const headers = { authorization: "Bearer " + process.env.BERTH_SECRET_KEY };
fetch("https://api.test/node", { method: "POST", body: "hello", headers }).then((answer) => console.log(answer.status));
`;

describe('a secret that a guest uses', { skip: CANNOT_BOOT_GUESTS, timeout: 900_000 }, () => {
  let lab: SecretInstallation | undefined;
  let servers: SecretServers;
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    lab = await startBesideServers({ GIT_PASSWORD: 'sk-one' });
    ({ berth, servers } = lab);
    guest = await GuestInstance.running(berth, 'web');
    await set('sk-one');
    const seen = async () => PLACEHOLDER.test(await session('echo "$BERTH_SECRET_KEY"'));
    await until('a session has the placeholder', seen);
  });
  after(() => lab?.close());

  const set = (value: string, hosts = ['api.test']) =>
    berth.client.expect(204, 'PUT', `${guest.path}/secrets/KEY`, { value, hosts });
  /** A new one, which has the variables of that moment. */
  const session = async (command: string, of = guest) =>
    (await berth.ssh.run(of.target, command)).stdout.trim();
  /** What the server got; null: nothing arrived. */
  async function ask(of = guest): Promise<string | null> {
    const path = `/${Math.random()}`;
    await session(`curl -s -m 10 -H "X-Key: $BERTH_SECRET_KEY" https://api.test${path} || true`, of);
    const got = servers.got.find(({ url }) => url === path);
    return got ? (fieldOf(got, 'x-key')[0] ?? null) : null;
  }

  test('arrives at its host, and at no other', async () => {
    assert.equal(await ask(), 'sk-one');
    await session('curl -sk -m 10 -H "X-Key: $BERTH_SECRET_KEY" https://other.test/other');
    const got = servers.got.find(({ url }) => url === '/other') ?? assert.fail('nothing arrived');
    assert.match(fieldOf(got, 'x-key')[0] ?? '', PLACEHOLDER);
  });

  test('works with Python requests, Node fetch and git, which know nothing of it', async (t) => {
    const packed = packClients();
    if (!packed) return t.skip('this machine has no Python with requests, or no git');
    await berth.ssh.output(guest.target, UNPACK, { input: packed });
    servers.makeRepository();
    const said = [await session(`python3 -c '${PYTHON}'`), await session(`node -e '${NODE}'`)];
    assert.deepEqual(said, ['200', '200']);
    for (const path of ['/python', '/node']) {
      const got = servers.got.find(({ url }) => url === path) ?? assert.fail(`nothing arrived at ${path}`);
      assert.deepEqual(fieldOf(got, 'authorization'), ['Bearer sk-one'], path);
    }
    const clone = 'git clone -q "https://user:$BERTH_SECRET_KEY@api.test/repo.git" /root/cloned';
    const log = await berth.ssh.output(guest.target, `${clone} && git -C /root/cloned log --format=%s`);
    assert.equal(log, 'first');
  });

  test('changes within 2 s, and ends so', async () => {
    await set('sk-two');
    const changed_at = performance.now();
    for (let began_ms = 0; (await ask()) !== 'sk-two'; began_ms = performance.now() - changed_at) {
      assert.ok(began_ms < IN_EFFECT_MS, `a request that began after ${began_ms} ms had the old value`);
    }
  });

  test('works on after a killed agent, a suspend and a restart', async () => {
    await berth.kill('agent', 'SIGKILL');
    await berth.recovered('agent');
    await until('it arrives again', async () => (await ask()) === 'sk-two');
    await guest.suspend();
    await guest.start();
    assert.equal(await ask(), 'sk-two');
    await guest.stop();
    await guest.start();
    await until('a new session has it', async () => (await ask()) === 'sk-two');
  });

  test('is a placeholder in a fork, unless the fork gets it', async () => {
    for (const secrets of [false, true]) {
      const body = { name: `fork-${secrets}`, secrets };
      const { id } = await berth.client.expect<{ id: string }>(201, 'POST', `${guest.path}/fork`, body);
      const fork = GuestInstance.of(berth, id);
      await fork.start();
      await fork.learnHost();
      const placeholder = await session('echo "$BERTH_SECRET_KEY"');
      const path = `/fork-${secrets}`;
      await fork.sh(`curl -sk -m 10 -H 'X-Key: ${placeholder}' https://api.test${path} || true`);
      const got = servers.got.find(({ url }) => url === path) ?? assert.fail('nothing arrived');
      assert.deepEqual(fieldOf(got, 'x-key'), [secrets ? 'sk-two' : placeholder]);
      await fork.stop();
    }
  });

  test('keeps memory out of core dumps of the process that puts it in', () => {
    const children = readFileSync(
      `/proc/${berth.role('agent').pid}/task/${berth.role('agent').pid}/children`,
      'utf8',
    );
    const proxies = children
      .trim()
      .split(/\s+/)
      .filter((pid) => readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('egress-proxy/main'));
    assert.equal(proxies.length, 1);
    assert.match(readFileSync(`/proc/${proxies[0]}/coredump_filter`, 'latin1'), /^0+\n$/);
  });
});
