/** The certificate that hosts pin is replaced while hosts stay connected, with two control planes and with one. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, test } from 'node:test';
import { sql } from 'kysely';
import { findCertificates } from '../../src/control-plane/fleet/control-plane-store.ts';
import { certificateFingerprint } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { parseJoinToken } from '../../src/protocol/protocol.ts';
import { type ControlPlaneProcess, FleetLab, untilKnown } from '../support/fleet-lab.ts';
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

  async function berth(...args: string[]): Promise<{ readonly out: string; readonly err: string }> {
    const env = await lab.settings();
    return new Promise((resolve) => {
      execFile(BERTH, args, { env }, (_, out, err) => resolve({ out, err }));
    });
  }
  const certificates = () => findCertificates(lab.database.db);
  /** Hosts have been told for more than a minute. */
  const aMinuteLater = () =>
    sql`update installation set next_announced_seconds = 60`.execute(lab.database.db);
  const isTold = () =>
    until('hosts are told', async () => ((await certificates()).next?.announced_seconds ?? 0) > 0);
  async function runsAt(at: ControlPlaneProcess, id: string): Promise<void> {
    await untilWorks('a command runs', async () => {
      const { stdout } = await at.client.expect<{ stdout: string }>(
        200,
        'POST',
        `/v1/instances/${id}/vm/exec`,
        { command: ['echo', 'ran'] },
      );
      assert.equal(stdout, 'ran\n');
    });
  }

  test('two control planes are restarted one after the other; the old certificate is worth nothing then', async () => {
    const [a, b] = [await lab.controlPlane(), await lab.controlPlane()];
    const host = await lab.host('rack', a.hosts_port);
    const id = await lab.running(a, 'first');
    await untilKnown(host, 2);
    const old = (await certificates()).present;

    assert.match((await berth('certificate', 'renew')).out, /^A new certificate is made\. Control planes/);
    assert.match(
      (await berth('certificate', 'renew')).err,
      /is made already\n {2}next: berth certificate show/,
    );
    const shown = await berth('certificate', 'show');
    assert.match(
      shown.out,
      /^A new certificate is made\. Hosts and ingresses are told of it for another \d+ s/,
    );
    assert.equal(shown.out.match(/https:.* the old certificate$/gm)?.length, 2, shown.out);
    const late = parseJoinToken((await berth('host', 'add', 'late')).out.trim()) ?? assert.fail('a token');
    await isTold();
    await untilKnown(host, 4);

    await aMinuteLater();
    await b.kill('SIGTERM');
    const second = await lab.controlPlane();
    assert.equal((await certificates()).present?.certificate, old?.certificate, 'one still shows it');
    assert.match((await berth('certificate', 'show')).out, /https:.* the new certificate$/m);
    await untilKnown(host, 3);
    await runsAt(a, id);
    await a.kill('SIGTERM');
    const first = await lab.controlPlane();
    await until('the old one is forgotten', async () => (await certificates()).next === null);
    await untilKnown(host, 3);
    for (const at of [first, second]) await runsAt(at, id);
    assert.match((await berth('certificate', 'show')).out, /^The certificate .* is not being replaced\./);
    const joining = new ScriptedAgent(`https://127.0.0.1:${second.hosts_port}`, late.token, late.fingerprint);
    await joining.client.join({ credential_sha256: hashToken('any').toString('hex') });
    await joining.close();
    const stale = new ScriptedAgent(
      `https://127.0.0.1:${first.hosts_port}`,
      'any',
      certificateFingerprint(old?.certificate ?? ''),
    );
    await assert.rejects(stale.heartbeat(), ({ cause }: Error) => /certificate/.test(String(cause)));
  });

  test('an ingress that keeps its folder follows, also when it is restarted with its old token', async () => {
    const [a, b] = [await lab.controlPlane(), await lab.controlPlane()];
    const token_path = join(lab.folder, 'front-token');
    writeFileSync(token_path, (await berth('ingress', 'add', 'front')).out, { mode: 0o600 });
    const settings = {
      PATH: process.env['PATH'] ?? '',
      BERTH_DATA_DIR: join(lab.folder, 'front'),
      BERTH_CONTROL_PLANE: `https://127.0.0.1:${a.hosts_port}`,
      BERTH_INGRESS_TOKEN_FILE: token_path,
      BERTH_SSH_LISTEN: '127.0.0.5',
      BERTH_HTTP_LISTEN: `127.0.0.5:${await ownPort()}`,
    };
    const reports = async () => {
      const since = new Date();
      await until('it reports', async () => {
        const row = await lab.database.db
          .selectFrom('ingresses')
          .select('reported_at')
          .where('name', '=', 'front')
          .executeTakeFirst();
        return (row?.reported_at ?? 0) > since;
      });
    };
    const front = lab.run(settings, 'ingress').child;
    await reports();
    await berth('certificate', 'renew');
    await isTold();
    const kept = join(lab.folder, 'front', 'run', 'control-planes.json');
    const fingerprints = () =>
      new Set((readFileSync(kept, 'utf8').match(/"fingerprint":"[^"]+"/g) ?? []).map(String)).size;
    await until('it knows both', () => existsSync(kept) && fingerprints() === 2);
    await aMinuteLater();
    for (const each of [b, a]) {
      await each.kill('SIGTERM');
      await lab.controlPlane({ BERTH_HOSTS_LISTEN: `127.0.0.1:${each.hosts_port}` });
      await reports();
    }
    await until('it trusts the new one alone', () => fingerprints() === 1);
    const gone = once(front, 'exit');
    front.kill('SIGTERM');
    await gone;
    lab.run(settings, 'ingress');
    await reports();
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
    const host = await lab.host('rack', first.hosts_port);
    await until('it is known', async () => (await shown()) !== undefined);
    const old = await shown();
    await berth('certificate', 'renew');
    await isTold();
    const early = await restarted(first);
    await untilKnown(host, 2);
    assert.equal(await shown(), old);
    await aMinuteLater();
    await restarted(early);
    await until('the old one is forgotten', async () => (await certificates()).next === null);
    await untilKnown(host, 1);
    assert.notEqual(await shown(), old);
  });
});
