/**
 * How long a new instance's first start takes: from `POST …/vm` to the SSH server's greeting at the instance's port,
 * and to the end of a first `ssh … true`, the way a client learns of it (`GET …/vm?wait=running`, `GET …/ssh`).
 * Beside it a bare QEMU start (bare-machine.ts), from the start of its process, its port tried as soon as its guest agent answers.
 * Both boot the image for the first time on a new overlay: growing the file system and making the host key are in both.
 */
import { join } from 'node:path';
import { type BareImage, bakeKey, startBare } from './bare-machine.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { makeKey, type SshKey, ssh, untilBanner } from './ssh.ts';

interface Times {
  readonly banner_s: number;
  readonly login_s: number;
}

const BESIDE = 'bare QEMU';

async function startOfBerth(context: BenchContext, name: string, key: SshKey): Promise<Times> {
  const { signal } = context;
  const { api } = context.installation;
  const { id } = await api.createInstance(name);
  const started_ms = performance.now();
  await api.startVm(id);
  await api.untilRunning(id);
  const target = await api.ssh(id);
  await untilBanner(target, signal);
  const banner_s = (performance.now() - started_ms) / 1000;
  await ssh(target, 'true', { key, signal });
  const login_s = (performance.now() - started_ms) / 1000;
  await api.deleteInstance(id);
  return { banner_s, login_s };
}

async function startOfBare(context: BenchContext, image: BareImage, key: SshKey): Promise<Times> {
  const { signal, installation } = context;
  const machine = await startBare(image, installation.accel);
  try {
    await machine.untilUp(signal);
    await untilBanner(machine.target, signal);
    const banner_s = (performance.now() - machine.started_ms) / 1000;
    await ssh(machine.target, 'true', { key, signal });
    return { banner_s, login_s: (performance.now() - machine.started_ms) / 1000 };
  } finally {
    await machine.end();
  }
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, image_dir, runs, say } = context;
  const key = await makeKey(scratch_dir);
  await installation.api.addKey('bench-start', key.public_key);
  const image = await bakeKey(join(scratch_dir, 'bare'), image_dir, key.public_key);
  const berth: Times[] = [];
  const bare: Times[] = [];
  for (let round = 0; round <= runs; round++) {
    const a = await startOfBerth(context, `start-${round}`, key);
    const b = await startOfBare(context, image, key);
    const shown = (times: Times) => `${times.banner_s.toFixed(2)} s, ${times.login_s.toFixed(2)} s`;
    say(`round ${round}${round === 0 ? ' (not counted)' : ''}: Berth ${shown(a)}; ${BESIDE} ${shown(b)}`);
    if (round === 0) continue;
    berth.push(a);
    bare.push(b);
  }
  const figure = (name: string, of: (times: Times) => number): Measured =>
    measured({
      bench: 'start',
      figure: name,
      unit: 's',
      values: berth.map(of),
      beside: BESIDE,
      beside_values: bare.map(of),
      remark: '',
    });
  return [
    figure('ssh_banner', (times) => times.banner_s),
    figure('first_ssh_true', (times) => times.login_s),
  ];
}

export const startBench: Bench = {
  name: 'start',
  summary: 'POST …/vm to the SSH banner and to a finished first ssh, beside a bare QEMU start',
  run,
};
