/**
 * How long a new instance's first start takes: from `POST …/vm` to the SSH server's greeting at the instance's port,
 * and to the end of a first `ssh … true`, the way a client learns of it (`GET …/vm?wait=running`, `GET …/ssh`).
 * Beside it a bare QEMU start (bare-machine.ts), from the start of its process, its port tried as soon as its guest agent answers.
 * And beside `virsh start` of the same image (libvirt-machine.ts), where libvirt is installed.
 * All boot the image for the first time on a new overlay: growing the file system and making the host key are in each.
 */
import { join } from 'node:path';
import { type BareImage, bakeKey, startBare } from './bare-machine.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { Libvirt, libvirtIsThere } from './libvirt-machine.ts';
import { makeKey, type SshKey, ssh, untilBanner } from './ssh.ts';

interface Times {
  readonly banner_s: number;
  readonly login_s: number;
}

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

async function startOfLibvirt({ signal }: BenchContext, libvirt: Libvirt, key: SshKey): Promise<Times> {
  const { started_ms, target } = await libvirt.start();
  try {
    await libvirt.untilUp(signal);
    await untilBanner(target, signal);
    const banner_s = (performance.now() - started_ms) / 1000;
    await ssh(target, 'true', { key, signal });
    return { banner_s, login_s: (performance.now() - started_ms) / 1000 };
  } finally {
    await libvirt.stop();
  }
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, image_dir, say } = context;
  const key = await makeKey(scratch_dir);
  await installation.api.addKey('bench-start', key.public_key);
  const image = await bakeKey(join(scratch_dir, 'bare'), image_dir, key.public_key);
  const libvirt = (await libvirtIsThere()) ? await Libvirt.prepare(image, installation.accel) : null;
  if (!libvirt) say('virsh is not installed: not beside libvirt');
  try {
    return await rounds(context, key, image, libvirt);
  } finally {
    await libvirt?.end();
  }
}

async function rounds(
  context: BenchContext,
  key: SshKey,
  image: BareImage,
  libvirt: Libvirt | null,
): Promise<readonly Measured[]> {
  const sides = [
    { name: 'Berth', start: (round: number) => startOfBerth(context, `start-${round}`, key) },
    { name: 'bare QEMU', start: () => startOfBare(context, image, key) },
    ...(libvirt ? [{ name: 'virsh start', start: () => startOfLibvirt(context, libvirt, key) }] : []),
  ].map((side) => ({ ...side, times: [] as Times[] }));
  for (let round = 0; round <= context.runs; round++) {
    for (const { name, start, times } of sides) {
      const taken = await start(round);
      const note = round === 0 ? ' (not counted)' : '';
      context.say(
        `round ${round}${note}: ${name} ${taken.banner_s.toFixed(2)} s, ${taken.login_s.toFixed(2)} s`,
      );
      if (round > 0) times.push(taken);
    }
  }
  const [berth, ...others] = sides;
  return others.flatMap(({ name, times }, nth) => {
    const figure = (what: string, of: (times: Times) => number): Measured =>
      measured({
        bench: 'start',
        figure: nth === 0 ? what : `${what}_libvirt`,
        unit: 's',
        values: (berth?.times ?? []).map(of),
        beside: name,
        beside_values: times.map(of),
        remark: '',
      });
    return [figure('ssh_banner', (each) => each.banner_s), figure('first_ssh_true', (each) => each.login_s)];
  });
}

export const startBench: Bench = {
  name: 'start',
  summary:
    'POST …/vm to the SSH banner and to a finished first ssh, beside a bare QEMU start and `virsh start`',
  run,
};
