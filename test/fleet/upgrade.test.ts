/**
 * docs/operating/upgrade.md, from an earlier commit of this repository to this one, and back by one version: two control planes and
 * a host with a running VM, and an ingress, under a load of requests. `npm run upgrade-from -- COMMIT` names another commit.
 */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { isProcessAlive, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import { Checkout } from '../support/checkout.ts';
import { type ControlPlaneProcess, FleetLab } from '../support/fleet-lab.ts';
import { CANNOT_BOOT_GUESTS } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { RemoteHost } from '../support/remote-host.ts';
import type { InstanceBody, ReceiptBody, SshBody, VmBody } from '../support/rest-client.ts';
import { sshGreeting } from '../support/sockets.ts';
import { SteadyLoad } from '../support/steady-load.ts';
import { thorough } from '../support/thorough.ts';
import { until, untilWorks } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

/** The first commit with the migrations of 0.1.0 and version 1 of the agent protocol. */
const FROM = process.env['BERTH_UPGRADE_FROM'] ?? '1b815a39';
/** The ingress's loopback address of its own. */
const FRONT = '127.0.0.4';
const SMALL = { memory_mib: 256, disk_gib: 2, auto_flush_seconds: null };
const COUNTER =
  'nohup sh -c "n=0; while :; do n=\\$((n+1)); echo \\$n > /run/count; sleep 0.2; done" > /dev/null 2>&1 &';
const PATIENCE = { timeout_ms: 240_000 };

const only = Checkout.has(FROM) ? THOROUGH : { skip: `this repository does not have the commit ${FROM}` };

describe('a fleet is upgraded while it works', {
  skip: CANNOT_BOOT_GUESTS,
  ...only,
  timeout: 900_000,
}, () => {
  let old: Checkout;
  const present = Checkout.PRESENT;
  let lab: FleetLab;
  let settings: readonly Record<string, string>[];
  const planes: ControlPlaneProcess[] = [];
  let host: RemoteHost;
  let front: ChildProcess;
  let front_settings: Readonly<Record<string, string>>;
  let load: SteadyLoad;
  let vm_path = '';
  let ssh_port = 0;
  let qemu: ProcessIdentity;
  let counted = 0;

  const run = async (index: 0 | 1, checkout: Checkout) => {
    lab.main = checkout.main;
    planes[index] = await lab.controlPlane(settings[index]);
  };
  const upgrade = async (index: 0 | 1, checkout: Checkout) => {
    await planes[index]?.kill('SIGTERM');
    await run(index, checkout);
  };
  const startFront = (checkout: Checkout) => {
    lab.main = checkout.main;
    front = lab.run(front_settings, 'ingress').child;
  };
  const restartFront = async (checkout: Checkout) => {
    const gone = once(front, 'exit');
    front.kill('SIGTERM');
    await gone;
    startFront(checkout);
  };
  const leadsToGuest = () =>
    untilWorks('the ingress leads to the guest', async () =>
      assert.match(await sshGreeting(FRONT, ssh_port), /^SSH-2\.0-OpenSSH/),
    );
  /** A command in the guest, by this control plane. */
  const guest = (index: 0 | 1, command: string) =>
    untilWorks(`a command in the guest by control plane ${index}`, async () => {
      const body = { command: ['sh', '-c', command] };
      const answer = await planes[index]?.client.expect<{ stdout: string }>(
        200,
        'POST',
        `${vm_path}/exec`,
        body,
      );
      return answer?.stdout.trim() ?? '';
    });
  /** The VM runs on: the same process, and a guest that counts on; each control plane reaches it. */
  const runsOn = async () => {
    assert.ok(isProcessAlive(qemu), 'the VM is the same process');
    for (const index of [0, 1] as const) {
      const now = Number(await guest(index, 'cat /run/count'));
      assert.ok(now >= counted, `it counts on: ${now} after ${counted}`);
      counted = now;
    }
    const vm = await planes[0]?.client.expect<VmBody>(200, 'GET', vm_path);
    assert.deepEqual([vm?.state, vm?.boot], ['running', 1]);
  };
  const flushes = async () => {
    await guest(0, 'date +%N > /srv/dirty; sync');
    const flush = () => planes[1]?.client.expect<ReceiptBody>(200, 'POST', `${vm_path}/flush`);
    const receipt = await untilWorks('a flush', async () => flush());
    assert.ok(receipt && receipt.dirty_bytes > 0);
  };

  before(async () => {
    old = await Checkout.of(FROM);
    lab = await FleetLab.start();
    const url = { DATABASE_URL: await lab.database.createEmpty('upgraded') };
    const ports = {
      BERTH_LISTEN: `127.0.0.1:${await ownPort()}`,
      BERTH_HOSTS_LISTEN: `127.0.0.1:${await ownPort()}`,
    };
    settings = [
      { ...(await lab.settings()), ...url },
      { ...(await lab.settings()), ...url, ...ports },
    ];
    await old.berth(settings[0] ?? {}, 'migrate');
    await run(0, old);
    await run(1, old);
    const token = await old.berth(settings[0] ?? {}, 'host', 'add', 'rack-1', '--cpus', '2', '--memory', '4');
    const reached = `https://127.0.0.1:${planes[0]?.hosts_port}`;
    host = await RemoteHost.start(reached, token, { BERTH_ACCEL: 'tcg' }, old.main);
    const front_token = join(lab.folder, 'front-token');
    writeFileSync(front_token, await old.berth(settings[0] ?? {}, 'ingress', 'add', 'front'), {
      mode: 0o600,
    });
    front_settings = {
      PATH: process.env['PATH'] ?? '',
      BERTH_DATA_DIR: join(lab.folder, 'front'),
      BERTH_CONTROL_PLANE: reached,
      BERTH_INGRESS_TOKEN_FILE: front_token,
      BERTH_SSH_LISTEN: FRONT,
      BERTH_HTTP_LISTEN: `${FRONT}:${await ownPort()}`,
    };
    startFront(old);
    const { client } = planes[0] ?? assert.fail('it runs');
    await client.takeKey();
    const made = { ...SMALL, name: 'survivor' };
    const { id } = await client.expect<InstanceBody>(201, 'POST', '/v1/instances', made);
    vm_path = `/v1/instances/${id}/vm`;
    await untilWorks('it is placed', () => client.expect(202, 'POST', vm_path), PATIENCE);
    await until(
      'it runs',
      async () => (await client.expect<VmBody>(200, 'GET', vm_path)).state === 'running',
      PATIENCE,
    );
    await guest(0, COUNTER);
    await until('it counts', async () => Number(await guest(1, 'cat /run/count')) > 0);
    qemu = host.qemu(id);
    ssh_port = (await client.expect<SshBody>(200, 'GET', `/v1/instances/${id}/ssh`)).port;
    await leadsToGuest();
    load = new SteadyLoad(
      planes.map(({ port }) => `http://127.0.0.1:${port}`),
      client.token,
    );
    await load.goesOn();
  });
  after(async () => {
    await load?.end().catch(() => undefined);
    await host?.dispose();
    await lab?.dispose();
    old?.dispose();
  });

  test('1. the database: control planes of the version before go on serving', async (t) => {
    t.diagnostic(await present.berth(settings[0] ?? {}, 'migrate'));
    await load.goesOn();
    await runsOn();
  });

  test('2. the control planes, one after the other: both versions serve side by side', async () => {
    await upgrade(0, present);
    await load.goesOn();
    await runsOn();
    await flushes();
    await upgrade(1, present);
    await load.goesOn();
    await runsOn();
    await leadsToGuest();
  });

  test('3. the ingress: it serves again', async () => {
    await restartFront(present);
    await leadsToGuest();
    await load.goesOn();
  });

  test('4. the host: its VM keeps running, and the new agent adopts it', async (t) => {
    const began = performance.now();
    await host.restart(present.main);
    await runsOn();
    t.diagnostic(
      `a command in the guest was possible ${Math.round(performance.now() - began)} ms after the stop`,
    );
    await flushes();
    await load.goesOn();
  });

  test('back by one version: hosts, the ingress, then control planes', async () => {
    await host.restart(old.main);
    await runsOn();
    await flushes();
    await restartFront(old);
    await leadsToGuest();
    await upgrade(0, old);
    await upgrade(1, old);
    await load.goesOn();
    await runsOn();
    await leadsToGuest();
  });

  test('no accepted request was lost', async (t) => {
    await load.end();
    await load.requireKept(planes[1]?.client ?? assert.fail('it runs'));
    t.diagnostic(`${load.accepted} requests were accepted, ${load.repeats.length} attempts were repeated`);
    t.diagnostic([...new Set(load.repeats)].join('\n'));
  });
});
