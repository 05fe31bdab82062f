/** Ends of execs that a machine sent just before its own: they are read, and reported before the end of their boot. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { ControlPlaneClient } from '../../src/agent-api/client.ts';
import type { ExecsReport } from '../../src/agent-api/exec-types.ts';
import { FROM_GUEST, TO_GUEST } from '../../src/host/execs/frames.ts';
import { HostExecs } from '../../src/host/execs/host-execs.ts';
import { GuestAgent } from '../../src/host/guest/guest-agent.ts';
import { vmFolder } from '../../src/host/machine/record.ts';
import { Reporter } from '../../src/host/runner/reporter.ts';
import { vmSockets } from '../../src/host/vm/vm-spec.ts';
import { present } from '../../src/lib/assert.ts';
import { type InstanceId, newId } from '../../src/lib/ids.ts';
import { createLog } from '../../src/lib/log.ts';
import { until } from '../support/waiting.ts';

const ID_BYTES = 26;

/** A frame of the supervisor. */
function fromGuest(type: string, exec = '', payload: Buffer = Buffer.alloc(0)): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(1 + ID_BYTES + payload.length);
  return Buffer.concat([length, Buffer.from(type + exec.padEnd(ID_BYTES, '\0'), 'latin1'), payload]);
}

/** Frames to the guest, without their bytes of length; none of these has an escaped byte that is compared. */
function* toGuest(chunk: Buffer): Generator<{ type: string; exec: string; payload: Buffer }> {
  for (const part of chunk.toString('latin1').split('\x7e').filter(Boolean)) {
    const plain = part.replaceAll('\x7d\x5e', '\x7e').replaceAll('\x7d\x5d', '\x7d');
    const exec = plain.slice(5, 5 + ID_BYTES);
    yield { type: plain.charAt(4), exec, payload: Buffer.from(plain.slice(5 + ID_BYTES), 'latin1') };
  }
}

/** A machine's port for execs, behind which a supervisor starts what it is asked for. */
async function supervisorAt(t: TestContext, path: string): Promise<{ end: (last: Buffer) => void }> {
  let line: Socket | undefined;
  const server = createServer((socket) => {
    line = socket;
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      for (const { type, exec, payload } of toGuest(chunk)) {
        const session = Buffer.from('a'.repeat(32));
        if (type === TO_GUEST.hello)
          socket.write(
            Buffer.concat([
              payload,
              fromGuest(FROM_GUEST.hello, '', session),
              fromGuest(FROM_GUEST.all_listed),
            ]),
          );
        if (type === TO_GUEST.start) socket.write(fromGuest(FROM_GUEST.started, exec));
      }
    });
  }).listen(path);
  t.after(() => server.close());
  await once(server, 'listening');
  return { end: (last) => void line?.end(last) };
}

test('an exit that is unread when its machine ends is reported, and before the end of the machine', async (t) => {
  const root = mkdtempSync(join(tmpdir(), 'bxe-'));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  const instance_id: InstanceId = newId('inst');
  const folder = vmFolder(root, instance_id);
  mkdirSync(folder.runtime, { recursive: true });
  const supervisor = await supervisorAt(t, vmSockets(folder.runtime).execs);
  const said: { url: string | undefined; body: Partial<ExecsReport> }[] = [];
  const control_plane = createHttpServer(async (request, response) => {
    const body = Buffer.concat(await request.toArray()).toString('utf8');
    said.push({ url: request.url, body: JSON.parse(body) });
    response.setHeader('content-type', 'application/json').end('{"outcome":"accepted"}');
  }).listen(0, '127.0.0.1');
  await once(control_plane, 'listening');
  const { port } = control_plane.address() as AddressInfo;
  const client = new ControlPlaneClient({ address: `http://127.0.0.1:${port}`, token: 'x' });
  t.after(async () => {
    await client.close();
    control_plane.close().closeAllConnections();
  });
  const agent = new GuestAgent(vmSockets(folder.runtime).agent);
  t.after(() => agent.close());
  let ended = false;
  const machine = { view: 'up' as const, resets: 0, agent, folder };
  const log = createLog('test', 'silent');
  const host = new HostExecs({ paths: { vms: root }, client, log }, () => [
    { instance_id, machine: ended ? null : machine },
  ]);
  const execs = present(host.of(instance_id), 'execs of the instance');
  t.after(() => execs.close());
  execs.look(machine);
  await until('its supervisor answers', () => execs.connected, { every_ms: 5 });
  const exec_id = newId('exec');
  const call = { kind: 'exec_start', instance_id, vm_id: newId('vm'), exec_id, command: ['true'] } as const;
  const words = { environment: [], cwd: '/', user: 'root', tty: null, stdin: false, timeout_ms: null };
  assert.equal(await execs.start(machine, { ...call, ...words }), null);
  // By no signal, code 7, not timed out; no output, just now.
  const exit = Buffer.concat([Buffer.of(0, 7, 0), Buffer.alloc(16)]);
  supervisor.end(fromGuest(FROM_GUEST.exited, exec_id.slice('exec_'.length), exit));
  ended = true;
  execs.look(null);
  const never = new AbortController().signal;
  const reporter = new Reporter({ client, log }, never, () => host.reportEnds(instance_id, never));
  const reason = { code: 'vm_died', message: 'It died.' } as const;
  await reporter.report({
    vm_id: newId('vm'),
    epoch: 1,
    observed: { kind: 'failed', reason, guest_ran: true },
  });
  assert.deepEqual(
    said.map(({ url, body }) => [url, body.execs?.map(({ end }) => [end?.state, end?.exit_code])]),
    [
      ['/internal/v1/execs', [['exited', 7]]],
      ['/internal/v1/report', undefined],
    ],
  );
});
