/** A supervisor that root in the guest has replaced: what it says holds up no report of another VM, and makes nothing on its host. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { FROM_GUEST } from '../../src/host/execs/exec-channel.ts';
import { HostExecs } from '../../src/host/execs/host-execs.ts';
import { GuestAgent } from '../../src/host/guest/guest-agent.ts';
import { vmSockets } from '../../src/host/qemu/qemu-command.ts';
import { vmFolder } from '../../src/host/vm/record.ts';
import type { ExecsReport } from '../../src/protocol/exec-types.ts';
import { present } from '../../src/shared/assert.ts';
import { type ExecId, type InstanceId, newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { fromGuest, type Supervisor, supervisorAt } from '../support/exec-supervisor.ts';
import { type StrictControlPlane, strictControlPlane } from '../support/strict-control-plane.ts';
import { until } from '../support/waiting.ts';

/** Of one boot: VmExecs takes so many that it was not asked for. */
const UNASKED = 64;
const END = { exit: Buffer.concat([Buffer.of(0, 7, 0), Buffer.alloc(16)]) };

const keyOf = (id: ExecId) => id.slice('exec_'.length);

function numbers(...values: readonly bigint[]): Buffer {
  const bytes = Buffer.alloc(8 * values.length);
  for (const [at, value] of values.entries()) bytes.writeBigUInt64BE(value, 8 * at);
  return bytes;
}

function outputAt(offset: bigint, text: string): Buffer {
  return Buffer.concat([numbers(offset), Buffer.of(1), Buffer.from(text)]);
}

interface Vm {
  readonly instance_id: InstanceId;
  readonly supervisor: Supervisor;
  readonly execs_folder: string;
  start(): Promise<ExecId>;
  found(id: ExecId): number | null;
}

/** A host with its real execs, and VMs whose supervisors a test speaks for. */
async function hostWith(
  t: TestContext,
  count: number,
  control_plane: StrictControlPlane,
  listed: readonly Buffer[] = [],
): Promise<Vm[]> {
  const root = mkdtempSync(join(tmpdir(), 'bhx-'));
  const log = createLog('test', 'silent');
  const machines = await Promise.all(
    Array.from({ length: count }, async () => {
      const instance_id: InstanceId = newId('inst');
      const folder = vmFolder(root, instance_id);
      mkdirSync(folder.runtime, { recursive: true });
      const sockets = vmSockets(folder.runtime);
      const supervisor = await supervisorAt(t, sockets.execs, listed);
      const agent = new GuestAgent(sockets.agent);
      t.after(() => agent.close());
      return { instance_id, supervisor, machine: { view: 'up' as const, resets: 0, agent, folder }, folder };
    }),
  );
  const host = new HostExecs({ paths: { vms: root }, client: control_plane.client, log }, () => machines);
  const ending = new AbortController();
  const running = host.run(ending.signal);
  t.after(async () => {
    ending.abort();
    await running;
    rmSync(root, { recursive: true, force: true });
  });
  await until('the supervisors answer', () =>
    machines.every(({ instance_id }) => host.of(instance_id)?.connected === true),
  );
  return machines.map(({ instance_id, supervisor, machine, folder }) => {
    const execs = present(host.of(instance_id), 'execs');
    return {
      ...{ instance_id, supervisor, execs_folder: join(folder.folder, 'execs') },
      async start() {
        const exec_id = newId('exec');
        const call = { kind: 'exec_start', instance_id, vm_id: newId('vm'), exec_id } as const;
        const words = { command: ['true'], environment: [], cwd: '/', user: 'root', tty: null };
        assert.equal(await execs.start(machine, { ...call, ...words, stdin: false, timeout_ms: null }), null);
        return exec_id;
      },
      found: (id) => execs.find(id)?.output.end ?? null,
    };
  });
}

function reported(control_plane: StrictControlPlane): ExecsReport['execs'] {
  return control_plane.accepted('execs').flatMap((body) => (body as ExecsReport).execs);
}

for (const [what, offset] of [
  ['an offset of 2^52', 2n ** 52n],
  ['an offset of 2^64 - 1', 2n ** 64n - 1n],
  ['the last offset that there is, with a byte behind it', 2n ** 50n],
] as const)
  test(`${what} ends that channel, and the other VM's execs are reported`, async (t) => {
    const control_plane = await strictControlPlane(t);
    const [hostile, other] = (await hostWith(t, 2, control_plane)) as [Vm, Vm];
    const [poisoned, good] = [await hostile.start(), await other.start()];
    hostile.supervisor.say(fromGuest(FROM_GUEST.output, keyOf(poisoned), outputAt(offset, 'x')));
    await until('the channel was opened anew', () => hostile.supervisor.greetings === 2);
    other.supervisor.say(
      fromGuest(FROM_GUEST.output, keyOf(good), outputAt(0n, 'hello')),
      fromGuest(FROM_GUEST.exited, keyOf(good), END.exit),
    );
    await until("the other's end is reported", () =>
      reported(control_plane).some(({ exec_id, end }) => exec_id === good && end?.exit_code === 7),
    );
    assert.deepEqual(
      control_plane.said.filter(({ status }) => status !== 200),
      [],
      'no report is refused',
    );
  });

test('a start that nobody asked for makes no exec and no file', async (t) => {
  const control_plane = await strictControlPlane(t);
  const [hostile] = (await hostWith(t, 1, control_plane)) as [Vm];
  const strange = Array.from({ length: 500 }, () => newId('exec'));
  hostile.supervisor.say(...strange.map((id) => fromGuest(FROM_GUEST.started, keyOf(id))));
  const asked = await hostile.start();
  assert.deepEqual(readdirSync(hostile.execs_folder), [`${asked}.json`]);
  assert.deepEqual(
    strange.filter((id) => hostile.found(id) !== null),
    [],
  );
});

test('a supervisor that lists what nobody has started gets room for few, however often it ends them', async (t) => {
  const control_plane = await strictControlPlane(t);
  const [hostile] = (await hostWith(t, 1, control_plane)) as [Vm];
  const listing = Buffer.concat([numbers(0n, 0n), Buffer.of(0, 0)]);
  const strange = Array.from({ length: 1_000 }, () => newId('exec'));
  hostile.supervisor.say(
    ...strange.flatMap((id) => [
      fromGuest(FROM_GUEST.listed, keyOf(id), listing),
      fromGuest(FROM_GUEST.exited, keyOf(id), END.exit),
    ]),
  );
  const asked = await hostile.start();
  assert.equal(readdirSync(hostile.execs_folder).length, UNASKED + 1);
  assert.equal(hostile.found(asked), 0);
});

test('hundreds of execs whose output never stops do not hold up the reports of another VM', async (t) => {
  let writeMore = async () => {};
  const control_plane = await strictControlPlane(t, {
    // All of them have more output by the time that a report is answered.
    statusOf: () => writeMore().then(() => 200),
  });
  const [busy, other] = (await hostWith(t, 2, control_plane)) as [Vm, Vm];
  const all = await Promise.all(Array.from({ length: 250 }, () => busy.start()));
  const last = present(all.at(-1), 'exec');
  const good = await other.start();
  let written = 0;
  writeMore = async () => {
    const at = written++;
    busy.supervisor.say(
      ...all.map((id) => fromGuest(FROM_GUEST.output, keyOf(id), outputAt(BigInt(at), 'x'))),
    );
    await until('the host has the output', () => (busy.found(last) ?? 0) > at, { every_ms: 1 });
  };
  await writeMore();
  other.supervisor.say(fromGuest(FROM_GUEST.exited, keyOf(good), END.exit));
  await until("the other's end is reported", () =>
    reported(control_plane).some(({ exec_id, end }) => exec_id === good && end !== null),
  );
  writeMore = async () => {};
});
