/** An ingress that knows two control planes: it serves on when the one that it uses is killed. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { after, before, test } from 'node:test';
import { insertIngress } from '../../src/control-plane/fleet/control-plane-store.ts';
import { hashToken, INGRESS_PREFIX, newToken } from '../../src/control-plane/identity/tokens.ts';
import { composeJoinToken } from '../../src/protocol/protocol.ts';
import { type ControlPlaneProcess, FleetLab, untilKnown } from '../support/fleet-lab.ts';
import { ownPort } from '../support/own-ports.ts';
import { until } from '../support/waiting.ts';

/** The ingress's loopback address of its own. */
const FRONT = '127.0.0.3';
const ssh_port = await ownPort();
let lab: FleetLab;
let a: ControlPlaneProcess;
let b: ControlPlaneProcess;
let output: () => string;

before(async () => {
  lab = await FleetLab.start();
  const ssh = { BERTH_SSH_HOST: 'ssh.example.org', BERTH_SSH_PORTS: `${ssh_port}-${ssh_port}` };
  a = await lab.controlPlane(ssh);
  b = await lab.controlPlane(ssh);
  // What comes to its sshd goes back.
  const connectSshd = async () => new PassThrough();
  await untilKnown(await lab.host('rack-1', b.hosts_port, { connectSshd }), 2);
  await lab.running(b, 'first');
  const token = newToken(INGRESS_PREFIX);
  assert(await insertIngress(lab.database.db, 'front', hashToken(token)));
  const token_path = join(lab.folder, 'ingress-token');
  writeFileSync(token_path, composeJoinToken(token, await lab.certificate()), { mode: 0o600 });
  const settings = {
    PATH: process.env['PATH'] ?? '',
    BERTH_DATA_DIR: join(lab.folder, 'ingress'),
    BERTH_CONTROL_PLANE: `https://127.0.0.1:${a.hosts_port}`,
    BERTH_INGRESS_TOKEN_FILE: token_path,
    BERTH_SSH_LISTEN: FRONT,
    BERTH_HTTP_LISTEN: `${FRONT}:${ssh_port + 1}`,
  };
  ({ output } = lab.run(settings, 'ingress'));
});
after(() => lab?.dispose());

async function isOpen(): Promise<Socket | undefined> {
  const socket = connect({ host: FRONT, port: ssh_port, allowHalfOpen: true });
  socket.on('error', () => undefined);
  return once(socket, 'connect').then(
    () => socket,
    () => undefined,
  );
}

test('when its control plane is killed, connections go through the other one', async (t) => {
  const echoes = async (text: string) => {
    const socket = await until('the port is open', isOpen);
    t.after(() => socket.destroy());
    const answered = once(socket, 'data');
    socket.write(text);
    return String((await answered)[0]);
  };
  assert.equal(await echoes('by the first'), 'by the first');
  await until('it knows both', () => output().includes('the control planes that can be used'));
  const killed_at_ms = Date.now();
  await a.kill();
  assert.equal((await b.client.request('GET', '/v1/instances')).status, 200);
  // Its first call finds the killed one; the retry goes to the other.
  await until('it has gone on', async () => {
    const row = await lab.database.db
      .selectFrom('ingresses')
      .select('reported_at')
      .where('name', '=', 'front')
      .executeTakeFirstOrThrow();
    return row.reported_at !== null && row.reported_at.getTime() > killed_at_ms;
  });
  assert.equal(await echoes('by the other'), 'by the other');
});
