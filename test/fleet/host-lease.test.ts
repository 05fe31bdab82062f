/**
 * The host's side of a lease, with the real fencer and a real control plane. The VMs are processes with the command line of a
 * VM, because fencing looks at nothing else.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import { noteDeleted } from '../../src/control-plane/disks/store.ts';
import { ensureHost, listLeases } from '../../src/control-plane/fleet/host-store.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { overlayPaths } from '../../src/host/disk/overlay-files.ts';
import { evictStaleDisks } from '../../src/host/evict-stale-disks.ts';
import { leftMs, readLease, runningFencer, startFencer, writeLease } from '../../src/host/lease/fencer.ts';
import { HostLease, LeaseOverError } from '../../src/host/lease/host-lease.ts';
import { bootMs, isProcessAlive, isStopped, killProcess } from '../../src/host/qemu/qemu-process.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { type InstanceId, newId, type VmId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile } from '../support/api.ts';
import { lookalikeVm } from '../support/lookalike-vm.ts';
import { FACTS, ScriptedAgent } from '../support/scripted-agent.ts';
import { ToxicProxy } from '../support/toxic-proxy.ts';
import { until } from '../support/waiting.ts';

const LEASE_MS = 3_000;
const api = await apiForFile({ host_lease_ms: LEASE_MS });
const owner = await api.person();
const log = createLog('test', 'silent');
const data = mkdtempSync(join(tmpdir(), 'bt-'));
const paths = pathsIn(data);

before(async () => {
  for (const folder of [paths.run, paths.vms, paths.logs]) await mkdir(folder);
});
after(async () => {
  const fencer = runningFencer(paths);
  if (fencer) killProcess(fencer, 'SIGKILL');
  rmSync(data, { recursive: true, force: true });
});

const lookalike = (instance_id: InstanceId, vm_id: VmId, vms = paths.vms) =>
  lookalikeVm(vms, instance_id, vm_id);

describe('the fencer', () => {
  test('pauses VMs while the lease is expired, and ends with the lease', async () => {
    const vm = await lookalike(newId('inst'), newId('vm'));
    const stranger = await lookalike(newId('inst'), newId('vm'), join(data, 'of-another', 'vms'));
    writeLease(paths.lease, bootMs() + 1_000, 1_000);
    startFencer(paths, 'info');
    const fencer = await until('the fencer watches', () => runningFencer(paths));
    await until('the VM is paused', () => isStopped(vm));
    assert.equal(leftMs(readLease(paths.lease) ?? assert.fail('no lease')), 0, 'not before its end');
    assert(!isStopped(stranger), 'the VM of another data folder');
    killProcess(vm, 'SIGCONT');
    await until('it is paused again', () => isStopped(vm));
    writeLease(paths.lease, bootMs() + 60_000, 60_000);
    // The fencer may just have looked.
    await until('it goes on', () => killProcess(vm, 'SIGCONT') && !isStopped(vm));
    const newer = await lookalike(newId('inst'), newId('vm'));
    // Each look reads the lease, and a little more; one may be on its way.
    const read_bytes = () =>
      Number(/^rchar: (\d+)$/m.exec(readFileSync(`/proc/${fencer.pid}/io`, 'latin1'))?.[1]);
    const enough = read_bytes() + 3 * statSync(paths.lease).size;
    await until('the fencer has looked', () => read_bytes() >= enough);
    assert(!isStopped(newer), 'a lease that was renewed holds');
    rmSync(paths.lease);
    await until('the fencer has ended', () => !isProcessAlive(fencer));
    assert.match(readFileSync(paths.fencer_log, 'utf8'), /the lease is over: VMs are paused/);
    for (const each of [vm, newer]) killProcess(each, 'SIGKILL');
    rmSync(paths.fenced, { force: true });
  });

  test('a damaged lease, or one of another boot of the machine, has expired', () => {
    assert.equal(leftMs({ boot_id: 'another', until_ms: bootMs() + 60_000 }), 0);
    writeLease(paths.lease, bootMs() + 60_000, 60_000);
    assert(leftMs(readLease(paths.lease) ?? assert.fail('no lease')) > 50_000);
    rmSync(paths.lease);
    assert.equal(readLease(paths.lease), null);
  });
});

describe("an agent's lease", () => {
  let proxy: ToxicProxy;
  let b: ScriptedAgent;
  let client: ControlPlaneClient;
  const ending = new AbortController();
  const running: Promise<void>[] = [];
  let lease: HostLease;

  const newLease = (signal: AbortSignal) => {
    const made = new HostLease({ client, paths, log, startFencer: () => startFencer(paths, 'info') });
    running.push(made.run(signal));
    return made;
  };
  const start = async (): Promise<{ id: InstanceId; vm_id: VmId }> => {
    const { id } = await api.instance(owner);
    assert.equal((await api.as(owner).post(`/v1/instances/${id}/vm`)).status, 202);
    return { id, vm_id: (await b.assigned(id)).vm_id };
  };

  before(async () => {
    const token = randomBytes(32).toString('hex');
    await ensureHost(api.db, 'b', hashToken(token));
    proxy = await ToxicProxy.open(Number(new URL(api.internal_origin).port));
    b = new ScriptedAgent(api.internal_origin, token);
    await b.connect({ ...FACTS, memory_mib: 2 * FACTS.memory_mib });
    // All VMs run at b.
    await api.db.updateTable('hosts').set({ cordoned: true }).where('id', '=', api.host_id).execute();
    client = new ControlPlaneClient({ address: proxy.endpoint, token });
    lease = newLease(ending.signal);
  });
  after(async () => {
    ending.abort();
    await Promise.all(running);
    await client.close();
    await proxy.cut();
    await b.close();
  });

  test('is reported only once a fencer enforces it', async () => {
    const promised = await until('a lease is promised', async () => (await listLeases(api.db))[0]);
    assert.equal(promised.lease_ms, LEASE_MS);
    assert(runningFencer(paths), 'the fencer was there before');
    await until('it is held', () => lease.isHeld);
  });

  test('a disconnected host pauses its VMs in time; back, it resumes wanted VMs and ends the others', async () => {
    const [kept, suspending, given_up] = [await start(), await start(), await start()];
    await b.ready(suspending.id);
    assert.equal((await api.as(owner).post(`/v1/instances/${suspending.id}/vm/suspend`)).status, 202);
    const wanted = [await lookalike(kept.id, kept.vm_id), await lookalike(suspending.id, suspending.vm_id)];
    const unwanted = await lookalike(given_up.id, given_up.vm_id);
    await proxy.cut();
    await until('all are paused', () => [...wanted, unwanted].every(isStopped));
    assert.equal(lease.isHeld, false);
    assert.throws(() => lease.require(), LeaseOverError);
    let gone_on = false;
    void lease.whenHeld(ending.signal).then(() => {
      gone_on = true;
    });
    await b.failed(given_up.id, 'host_lost');
    assert.equal(gone_on, false);
    await proxy.mend();
    await until('the lease is held again', () => lease.isHeld && gone_on);
    // A signal is sent; that it has done its work may take a busy machine a moment.
    await until('the other is ended', () => !isProcessAlive(unwanted));
    await until('the others go on', () => !wanted.some(isStopped));
    assert(wanted.every(isProcessAlive));
    assert.equal(existsSync(paths.fenced), false);
    for (const each of wanted) killProcess(each, 'SIGKILL');
  });

  test('files of a deleted instance are removed after a day; those of an existing one, and of an unknown one, stay', async () => {
    await mkdir(paths.overlays, { recursive: true });
    const known = (await api.instance(owner)).id;
    const [old, young, unknown] = [newId('inst'), newId('inst'), newId('inst')];
    for (const id of [old, young]) await noteDeleted(api.db, id);
    const a_day_ago = new Date(Date.now() - 25 * 3_600_000);
    for (const id of [known, old, young, unknown]) {
      for (const path of Object.values(overlayPaths(paths.overlays, id))) writeFileSync(path, '');
      if (id !== young) utimesSync(overlayPaths(paths.overlays, id).overlay, a_day_ago, a_day_ago);
    }
    await evictStaleDisks({ client, paths, log }, () => false);
    const left = new Set(readdirSync(paths.overlays).map((name) => name.replace(/\..*/, '')));
    assert.deepEqual([...left].sort(), [known, young, unknown].sort());
  });

  test('without an agent the fencer pauses alone; the next agent asks before it touches a VM', async () => {
    const { id, vm_id } = await start();
    const vm = await lookalike(id, vm_id);
    ending.abort();
    await Promise.all(running);
    await until('the VM is paused', () => isStopped(vm));
    const second = new AbortController();
    const next = newLease(second.signal);
    assert.equal(next.isHeld, false, 'it finds the lease over before all else');
    await next.whenHeld(second.signal);
    await until('the VM goes on', () => !isStopped(vm));
    // Soon after, and not by a new agent: a fencer that died is replaced.
    const fencer = await until('the fencer watches', () => runningFencer(paths));
    killProcess(fencer, 'SIGKILL');
    await until('another fencer watches', () => {
      const now = runningFencer(paths);
      return now !== null && now.pid !== fencer.pid;
    });
    await until('its lease is held', () => next.isHeld);
    second.abort();
    await Promise.all(running);
  });
});

describe('a host without a lease, whose credential is revoked', () => {
  test('pauses its VMs; accepted again, it reads its assignments, resumes its own VMs and ends the others', async (t) => {
    const alone = await apiForFile();
    const who = await alone.person();
    const instances = [await alone.instance(who), await alone.instance(who)];
    await alone.agent.heartbeat();
    const vms: { readonly id: InstanceId; readonly vm_id: VmId }[] = [];
    for (const { id } of instances) {
      assert.equal((await alone.as(who).post(`/v1/instances/${id}/vm`)).status, 202);
      vms.push({ id, vm_id: (await alone.agent.assigned(id)).vm_id });
    }
    const folder = mkdtempSync(join(tmpdir(), 'bt-'));
    const own = pathsIn(folder);
    for (const each of [own.run, own.vms, own.logs]) await mkdir(each);
    const [kept, given_up] = [
      await lookalike(vms[0]?.id ?? newId('inst'), vms[0]?.vm_id ?? newId('vm'), own.vms),
      await lookalike(newId('inst'), newId('vm'), own.vms),
    ];
    const revoke = (token_hash: Buffer) =>
      alone.db.updateTable('hosts').set({ token_hash }).where('id', '=', alone.host_id).execute();
    const client = new ControlPlaneClient({ address: alone.internal_origin, token: alone.host_token });
    const ending = new AbortController();
    await revoke(randomBytes(32));
    const refused = new HostLease({ client, paths: own, log, startFencer: () => startFencer(own, 'info') });
    const run = refused.run(ending.signal);
    t.after(async () => {
      ending.abort();
      await run;
      await client.close();
      const fencer = runningFencer(own);
      if (fencer) killProcess(fencer, 'SIGKILL');
      rmSync(folder, { recursive: true, force: true });
    });
    await until('its VMs are paused', () => [kept, given_up].every(isStopped));
    await until('a fencer watches', () => runningFencer(own));
    killProcess(kept, 'SIGCONT');
    await until('and pauses it again', () => isStopped(kept));
    await revoke(hashToken(alone.host_token));
    await refused.whenHeld(ending.signal);
    await until(
      'its own VM goes on, the other is ended',
      () => !isStopped(kept) && !isProcessAlive(given_up),
    );
    assert(isProcessAlive(kept));
    assert.equal(readLease(own.lease), null, 'alone, it needs no lease');
  });
});
