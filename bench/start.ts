/**
 * Measures a new instance's first start: from `POST …/vm` to the SSH greeting at the instance's port, and to the end of
 * a first `ssh … true`, with the calls of a client (`GET …/vm?wait=running`, `GET …/ssh`). Berth starts by a boot (in
 * an installation without templates), from a template, or by a resume.
 *
 * Compared with a bare QEMU start (bare-machine.ts), whose port is tried as soon as its guest agent answers. Both boot
 * the image for the first time on a new overlay, so both grow the file system. Berth's guests get a host key; the bare
 * guest generates one.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { pause } from '../src/shared/retry.ts';
import { type BareImage, bakeKey, startBare } from './bare-machine.ts';
import { type Bench, type BenchContext, type Measured, measured, quantile } from './figure.ts';
import { Installation } from './installation.ts';
import { makeKey, type SshKey, ssh, untilBanner } from './ssh.ts';

const TEMPLATE_MS = 300_000;

interface Times {
  readonly banner_s: number;
  readonly login_s: number;
}

type How = 'new' | 'resumed';

async function startOfBerth(
  { signal }: BenchContext,
  { api }: Installation,
  { name, how, key }: { readonly name: string; readonly how: How; readonly key: SshKey },
): Promise<Times> {
  const { id } = await api.createInstance(name);
  if (how === 'resumed') {
    await api.startVm(id);
    await api.untilRunning(id);
    await api.suspendVm(id);
  }
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

/** Waits for the template that the first start makes in the background, so that later starts use it. */
async function untilTemplate({ installation, signal }: BenchContext): Promise<void> {
  const deadline_ms = performance.now() + TEMPLATE_MS;
  while (!(await readFile(installation.log_path, 'utf8')).includes('a template was made')) {
    if (performance.now() > deadline_ms) throw new Error('no template is made');
    if (!(await pause(100, signal))) signal.throwIfAborted();
  }
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, signal } = context;
  const key = await makeKey(scratch_dir);
  const booting = await Installation.start({
    project_dir: join(import.meta.dirname, '..'),
    data_dir: join(scratch_dir, 'data'),
    log_path: join(scratch_dir, 'log'),
    accel: installation.accel,
    signal,
    settings: { BERTH_FAST_START: 'off', BERTH_SSH_PORTS: '24000-24999' },
  });
  try {
    for (const { api } of [booting, installation]) await api.addKey('bench-start', key.public_key);
    const image = await bakeKey(join(scratch_dir, 'bare'), context.image_dir, key.public_key);
    return await rounds(context, { booting, key, image });
  } finally {
    await booting.end();
  }
}

interface Sides {
  readonly booting: Installation;
  readonly key: SshKey;
  readonly image: BareImage;
}

async function rounds(context: BenchContext, { booting, key, image }: Sides): Promise<readonly Measured[]> {
  const berth = (installation: Installation, how: How) => (round: number) =>
    startOfBerth(context, installation, { name: `start-${how}-${round}`, how, key });
  const sides = [
    { name: 'Berth', start: berth(booting, 'new') },
    { name: 'Berth, from a template', start: berth(context.installation, 'new') },
    { name: 'Berth, resumed', start: berth(context.installation, 'resumed') },
    { name: 'bare QEMU', start: () => startOfBare(context, image, key) },
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
    if (round === 0) await untilTemplate(context);
  }
  return figures(sides);
}

function figures(
  sides: readonly { readonly name: string; readonly times: readonly Times[] }[],
): readonly Measured[] {
  const [booted, fast, resumed, bare] = sides;
  const pairs = [
    { suffix: '', berth: booted, beside: bare },
    { suffix: '_from_template', berth: fast, beside: bare },
    { suffix: '_resumed', berth: resumed, beside: bare },
    { suffix: '_resumed_beside_a_boot', berth: resumed, beside: booted },
  ];
  return pairs.flatMap(({ suffix, berth, beside }) => {
    if (!berth || !beside) return [];
    const figure = (what: string, of: (times: Times) => number): Measured => {
      const [values, beside_values] = [berth.times.map(of), beside.times.map(of)];
      const [ours, theirs] = [values, beside_values].map((each) => quantile(each, 0.99).toFixed(2));
      return measured({
        bench: 'start',
        figure: `${what}${suffix}`,
        unit: 's',
        values,
        beside: beside.name,
        beside_values,
        remark: `p99 ${ours} s beside ${theirs}`,
      });
    };
    return [figure('ssh_banner', (each) => each.banner_s), figure('first_ssh_true', (each) => each.login_s)];
  });
}

export const startBench: Bench = {
  name: 'start',
  summary:
    'POST …/vm to the SSH banner and to a finished first ssh, booted, from a template and resumed, beside a bare QEMU start',
  run,
};
