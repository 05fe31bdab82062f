/** The certificate that hosts pin is replaced while hosts stay connected, with two control planes and with one. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { sql } from 'kysely';
import { fingerprintOf } from '../../src/control-planes/hosts-certificate.ts';
import { findCertificates } from '../../src/control-planes/installation-store.ts';
import { AnsweringHost } from '../support/answering-host.ts';
import { type ControlPlaneProcess, FleetLab } from '../support/fleet-lab.ts';
import { ownPort } from '../support/own-ports.ts';
import { ScriptedAgent } from '../support/scripted-agent.ts';
import { until, untilWorks } from '../support/waiting.ts';

const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');

describe('a replacement of the certificate that hosts pin', { timeout: 300_000 }, () => {
  let lab: FleetLab;
  beforeEach(async () => {
    lab = await FleetLab.start();
  });
  afterEach(() => lab.dispose());

  async function berth(...args: string[]): Promise<{ failed: boolean; out: string }> {
    const env = await lab.settings();
    return new Promise((resolve) => {
      execFile(BERTH, args, { env }, (error, out, err) =>
        resolve({ failed: error !== null, out: out + err }),
      );
    });
  }
  const certificates = () => findCertificates(lab.database.db);
  /** Hosts have been told for more than a minute. */
  const aMinuteLater = () =>
    sql`update installation set next_told_at = next_told_at - interval '1 minute'`.execute(lab.database.db);
  const isTold = () => until('hosts are told', async () => (await certificates()).next?.is_told === true);
  const knows = (agent: ScriptedAgent, count: number) =>
    until(`it knows ${count} places`, async () => {
      await agent.heartbeat().catch(() => undefined);
      return agent.client.control_planes === count;
    });
  async function runsAt(at: ControlPlaneProcess, id: string): Promise<void> {
    await untilWorks('a command runs', async () => {
      const { stdout } = await at.client.expect<{ stdout: string }>(
        200,
        'POST',
        `/v1/instances/${id}/vm/exec`,
        { command: ['true'] },
      );
      assert.equal(stdout, 'ran true');
    });
  }

  test('two control planes are restarted one after the other; the old certificate is worth nothing then', async (t) => {
    const [a, b] = [await lab.controlPlane(), await lab.controlPlane()];
    const agent = await lab.host('rack', a.hosts_port);
    const host = new AnsweringHost(agent);
    t.after(() => host.close());
    const id = await lab.running(a, agent, 'first');
    await knows(agent, 2);
    const old = (await certificates()).present;

    assert.match((await berth('certificate', 'renew')).out, /^A new certificate is made\. Hosts/);
    const again = await berth('certificate', 'renew');
    assert.match(again.out, new RegExp(`show the old one: .*:${a.hosts_port}, .*:${b.hosts_port}\\.`));
    assert.match((await berth('host', 'add', 'late')).out, /is being replaced\n {2}next: berth certificate/);
    await isTold();
    await knows(agent, 4);

    await aMinuteLater();
    await b.kill('SIGTERM');
    const second = await lab.controlPlane();
    assert.equal((await certificates()).present?.certificate, old?.certificate, 'one still shows it');
    await knows(agent, 3);
    await runsAt(a, id);
    await a.kill('SIGTERM');
    const first = await lab.controlPlane();
    await until('the old one is forgotten', async () => (await certificates()).next === null);
    await knows(agent, 3);
    for (const at of [first, second]) await runsAt(at, id);
    assert.match((await berth('host', 'add', 'late')).out, /^berth_/);
    const stale = new ScriptedAgent(
      `https://127.0.0.1:${first.hosts_port}`,
      'any',
      fingerprintOf(old?.certificate ?? ''),
    );
    await assert.rejects(stale.heartbeat(), ({ cause }: Error) => /certificate/.test(String(cause)));
  });

  test('a single one is restarted: before its hosts know the new certificate it shows the old one still', async () => {
    const settings = { BERTH_HOSTS_LISTEN: `127.0.0.1:${await ownPort()}` };
    const restarted = async (running: ControlPlaneProcess) => {
      await running.kill('SIGTERM');
      return lab.controlPlane(settings);
    };
    const shown = async () => {
      const [row] = await lab.database.db.selectFrom('control_planes').select('fingerprint').execute();
      return row?.fingerprint;
    };
    const first = await lab.controlPlane(settings);
    const agent = await lab.host('rack', first.hosts_port);
    await until('it is known', async () => (await shown()) !== undefined);
    const old = await shown();
    await berth('certificate', 'renew');
    await isTold();
    const early = await restarted(first);
    await knows(agent, 2);
    assert.equal(await shown(), old);
    await aMinuteLater();
    await restarted(early);
    await until('the old one is forgotten', async () => (await certificates()).next === null);
    await knows(agent, 1);
    assert.notEqual(await shown(), old);
  });
});
