/** HTTP ports of real VMs: a page, a private port, a wake, a restart, other users of this machine. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { type IncomingMessage, request as sendRequest } from 'node:http';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { readRecord, vmFolder } from '../../src/host/vm/record.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { connectsTo, installServer, startServer, startServerAtBoot } from '../support/guest-http-server.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { until } from '../support/waiting.ts';

const run = promisify(execFile);

describe('HTTP ports', { skip: CANNOT_BOOT_GUESTS, timeout: 600_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let hostname: string;
  let private_hostname: string;

  const ask = async (path: string, body = '', headers: Record<string, string> = {}) => {
    const sent = sendRequest({
      ...{
        host: '127.0.0.1',
        port: berth.http_port,
        path,
        method: body === '' ? 'GET' : 'POST',
        agent: false,
      },
      headers: { host: hostname, ...headers },
    });
    sent.end(body);
    const [answer] = (await once(sent, 'response')) as [IncomingMessage];
    return { status: answer.statusCode, body: Buffer.concat(await answer.toArray()).toString() };
  };
  const publish = (access: string) =>
    berth.client.expect<{ hostname: string; url: string }>(201, 'POST', `${guest.path}/ports`, {
      port: 8080,
      access,
    });

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'web');
    await installServer(guest);
    ({ hostname } = await publish('public'));
    ({ hostname: private_hostname } = await publish('private'));
  });
  after(() => berth?.dispose());

  test('a port where nothing listens is 502 at once, and curl opens what listens by its URL', async () => {
    assert.equal((await ask('/')).status, 502);
    await startServer(guest);
    await until('it listens', async () => (await ask('/first')).status === 200);
    const { stdout } = await run('curl', ['-sS', `http://${hostname}:${berth.http_port}/curl`]);
    assert.equal(stdout, 'curl 0\n');
    assert.equal((await ask('/body', 'x'.repeat(3_000_000))).body, 'body 3000000\n');
  });

  test('a private port answers an API key, and nobody else', async () => {
    const host = { host: private_hostname };
    assert.equal((await ask('/secret', '', host)).status, 401);
    const made = { name: 'web', scope: 'vm:read' };
    const { key } = await berth.client.expect<{ key: string }>(201, 'POST', '/v1/api-keys', made);
    const answered = await ask('/key', '', { ...host, authorization: `Bearer ${key}` });
    assert.equal(answered.body, 'key 0\n');
    assert.ok(!(await guest.sh('cat /srv/log')).includes('secret'));
  });

  test('the way into a guest is for Berth alone: no other user of this machine takes it, and no other guest', async (context) => {
    const record = await readRecord(vmFolder(berth.paths.vms, guest.id as InstanceId));
    assert.ok(record);
    const [forward] = record.port_forwards ?? [];
    const way = record.network.kind === 'tap' ? `${record.network.address}:8080` : (forward?.address ?? '');
    context.diagnostic(`by ${record.network.kind} at ${way}`);
    assert.match(way, /^(198\.18\.\d+\.\d+:8080|127\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\..*)$/);
    const dial = (...user: string[]) =>
      run('setpriv', [...user, 'curl', '-sS', '-m', '5', `http://${way}/local`]).then(
        ({ stdout }) => stdout,
        () => 'refused',
      );
    assert.equal(await dial(), 'local 0\n');
    assert.equal(await dial('--reuid=65534', '--clear-groups'), 'refused');
    const second = await GuestInstance.running(berth, 'second');
    await installServer(second);
    await startServer(second);
    const from_second = (address: string) => {
      const [host = '', port = ''] = address.split(':');
      return second.sh(`${connectsTo(host, Number(port))} && echo open || echo refused`);
    };
    assert.equal((await from_second('127.0.0.1:8080')).trim(), 'open', 'else this proves nothing');
    assert.equal((await from_second(way)).trim(), 'refused');
    assert.equal(await dial(), 'local 0\n', 'else this proves nothing');
  });

  test('a request wakes a stopped and a suspended VM, and its program answers it once, with its whole body', async () => {
    await berth.client.expect(200, 'PATCH', guest.path, { wake_on_connect: true });
    await startServerAtBoot(guest);
    await guest.suspend();
    assert.equal((await ask('/suspended', 'y'.repeat(200_000))).body, 'suspended 200000\n');
    await guest.stop();
    assert.equal((await ask('/stopped', 'z'.repeat(200_000))).body, 'stopped 200000\n');
    // While it stops.
    await berth.client.expect(202, 'DELETE', `${guest.path}/vm`);
    assert.equal((await ask('/stopping')).body, 'stopping 0\n');
    // It came in time for the last boot, or waited for the next.
    await guest.becomes('stopped or up again', ({ state }) => state === 'stopped' || state === 'running');
    assert.equal((await ask('/next')).body, 'next 0\n');
    await berth.client.expect(202, 'POST', `${guest.path}/vm/restart`);
    assert.equal((await ask('/restarting')).body, 'restarting 0\n');
    await berth.kill('agent');
    assert.equal((await ask('/agent')).body, 'agent 0\n');
    const log = (await guest.shAgain('cat /srv/log')).trim().split('\n');
    for (const id of ['suspended', 'stopped', 'stopping', 'restarting', 'agent']) {
      assert.equal(log.filter((each) => each === id).length, 1, id);
    }
  });
});
