/**
 * Twenty VMs: started together, and then idle.
 *
 * Started together: from the first `POST …/vm` until `ssh … true` has succeeded on every VM. All starts are requested at once,
 * and the host has a template. Compared with as many concurrent bare QEMU starts (bare-machine.ts) over one image. A failed VM
 * ends the benchmark.
 *
 * Idle: the agent's CPU time and memory for each idle VM, above its use without VMs. Compared with the CPU time and memory of the
 * VM's QEMU process.
 */
import { execFile } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { pathsIn } from '../src/config/paths.ts';
import { findOrphans } from '../src/host/vm/qemu-process.ts';
import { bakeKey, startBare } from './bare-machine.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { cpuSeconds, residentMib } from './process-cost.ts';
import { makeKey, type SshKey, ssh, untilBanner } from './ssh.ts';
import { untilTemplate } from './start.ts';

const VMS = 20;
const IDLE_S = 60;
/** The time after the last start in which guests finish their boot. */
const SETTLE_S = 30;

async function startAll(context: BenchContext, ids: readonly string[], key: SshKey): Promise<number> {
  const { installation, signal } = context;
  const { api } = installation;
  const started_ms = performance.now();
  await Promise.all(ids.map((id) => api.startVm(id)));
  await Promise.all(
    ids.map(async (id) => {
      await api.untilRunning(id);
      const target = await api.ssh(id);
      await untilBanner(target, signal);
      await ssh(target, 'true', { key, signal });
    }),
  );
  return (performance.now() - started_ms) / 1000;
}

async function startAllBare(context: BenchContext, key: SshKey): Promise<number> {
  const { scratch_dir, image_dir, installation, signal } = context;
  const image = await bakeKey(join(scratch_dir, 'bare'), image_dir, key.public_key);
  const folders = Array.from({ length: VMS }, (_, nth) => join(image.folder, `${nth}`));
  for (const folder of folders) await mkdir(folder);
  // Its writes do not belong to the starts.
  await promisify(execFile)('sync');
  const started_ms = performance.now();
  const starts = await Promise.allSettled(
    folders.map((folder) => startBare({ ...image, folder }, installation.accel)),
  );
  const machines = starts.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
  try {
    for (const each of starts) if (each.status === 'rejected') throw each.reason;
    await Promise.all(
      machines.map(async (machine) => {
        await machine.untilUp(signal);
        await untilBanner(machine.target, signal);
        await ssh(machine.target, 'true', { key, signal });
      }),
    );
    return (performance.now() - started_ms) / 1000;
  } finally {
    await Promise.all(machines.map((machine) => machine.end()));
  }
}

interface Idle {
  /** As a share of one core. */
  readonly agent: number;
  readonly agent_mib: number;
  /** Of the QEMU processes of all VMs. */
  readonly qemu: number;
  readonly qemu_mib: number;
}

async function idle({ installation, signal }: BenchContext): Promise<Idle> {
  const agent = installation.pidOf('agent');
  const qemus = findOrphans(pathsIn(installation.data_dir).vms).map(({ identity }) => identity.pid);
  const total = (of: (pid: number) => number, pids: readonly number[]) =>
    pids.reduce((sum, pid) => sum + of(pid), 0);
  const before = { agent: cpuSeconds(agent), qemu: total(cpuSeconds, qemus) };
  await sleep(IDLE_S * 1000, undefined, { signal });
  return {
    agent: (cpuSeconds(agent) - before.agent) / IDLE_S,
    agent_mib: residentMib(agent),
    qemu: (total(cpuSeconds, qemus) - before.qemu) / IDLE_S,
    qemu_mib: total(residentMib, qemus),
  };
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, say, signal } = context;
  const { api } = installation;
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-many', key.public_key);
  // The first start of the installation makes the template, so all measured starts use it.
  const { id: first } = await api.createInstance('many-first');
  await api.startVm(first);
  await api.untilRunning(first);
  await untilTemplate(context);
  await api.deleteInstance(first);
  const ids: string[] = [];
  for (let nth = 0; nth < VMS; nth++) ids.push((await api.createInstance(`many-${nth}`)).id);
  say(`${VMS} bare machines`);
  const bare_s = await startAllBare(context, key);
  say(`${bare_s.toFixed(1)} s; idle without VMs`);
  const without = await idle(context);
  const berth_s = await startAll(context, ids, key);
  say(`${VMS} VMs: ${berth_s.toFixed(1)} s; idle with them`);
  await sleep(SETTLE_S * 1000, undefined, { signal });
  const with_them = await idle(context);
  for (const id of ids) await api.deleteInstance(id);
  const figure = (name: string, unit: string, value: number, beside: string, beside_value: number) =>
    measured({
      bench: 'many',
      figure: name,
      unit,
      values: [value],
      beside,
      beside_values: [beside_value],
      remark: '',
    });
  const each = (more: number, less: number) => Math.max(0, more - less) / VMS;
  return [
    figure('together_first_ssh_true', 's', berth_s, `${VMS} bare QEMU`, bare_s),
    figure(
      'idle_agent_cpu',
      '% of a core, each VM',
      100 * each(with_them.agent, without.agent),
      'its QEMU',
      (100 * with_them.qemu) / VMS,
    ),
    figure(
      'idle_agent_memory',
      'MiB, each VM',
      each(with_them.agent_mib, without.agent_mib),
      'its QEMU',
      with_them.qemu_mib / VMS,
    ),
  ];
}

export const manyBench: Bench = {
  name: 'many',
  summary: `${VMS} VMs started together, beside as many bare QEMU; what an idle one costs the agent`,
  run,
};
