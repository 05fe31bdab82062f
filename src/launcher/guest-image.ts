/**
 * Builds the built-in guest images with `guest/build.sh` from Debian packages. Each version of a recipe has a folder
 * `<images>/<first 12 digits of the version>`, which appears complete and never changes, because overlays and running
 * VMs keep using it. The link `<images>/current` leads to the newest.
 */
import {
  copyFile,
  link,
  mkdir,
  open,
  readdir,
  readFile,
  readlink,
  rename,
  rm,
  stat,
  symlink,
} from 'node:fs/promises';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import { errnoOf } from '../shared/errors.ts';
import { lastLines, runCommand } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';

const TICK_MS = 1_000;
const ERASE = '\r\u001b[2K';

/** Shows the elapsed seconds on a terminal while a child program prints nothing. Its next line replaces them. */
export class SecondsLine {
  readonly #out: Writable;
  readonly #timer: NodeJS.Timeout;
  readonly #began_ms = performance.now();

  constructor(out: Writable) {
    this.#out = out;
    this.#timer = setInterval(() => this.#draw(), TICK_MS);
  }

  say(line: string): void {
    this.#out.write(`${ERASE}${line}\n`);
  }

  end(): void {
    clearInterval(this.#timer);
    this.#out.write(ERASE);
  }

  #draw(): void {
    this.#out.write(`${ERASE}… ${Math.round((performance.now() - this.#began_ms) / 1_000)} s`);
  }
}

export interface GuestImageOptions {
  /** The recipe: `guest/build.sh`. */
  readonly build_script: string;
  /** `debian-12` unless another recipe is named. */
  readonly image?: string;
  /** `<data>/images/<image>`; created if missing. */
  readonly images_dir: string;
  /** A folder like `images_dir` whose finished images are reused instead of building: the tests' cache. */
  readonly seed_dir?: string;
  readonly say: Say;
  /** Replaces the recipe's own output. */
  readonly onStep?: (step: number, what: string) => void;
  readonly signal?: AbortSignal;
  /** Other output is written meanwhile, so no line is overwritten. */
  readonly in_background?: boolean;
}

/** How many steps the recipe has. */
export const RECIPE_STEPS = 5;
const STEP = /: step (\d+)\/\d+ (.*) \(\d+s\)$/;

export interface GuestImage {
  readonly dir: string;
  readonly version: string;
}

const CURRENT = 'current';
const FILES = ['vmlinuz', 'initrd.img', 'rootfs.img'];

/** Uses an image of the recipe's version, or builds it, which takes a minute. */
export async function ensureGuestImage(options: GuestImageOptions): Promise<GuestImage> {
  const { version, publish } = await buildGuestImage(options, options.images_dir);
  await publish();
  return { dir: join(options.images_dir, version.slice(0, 12)), version };
}

/**
 * For a fast start: if an older image exists it stays in use, and `newer` builds the recipe's version in the background. Once
 * it is published the agent uses it for new disks.
 */
export async function someGuestImage(
  options: GuestImageOptions,
): Promise<{ readonly newer?: (signal: AbortSignal) => Promise<GuestImage> }> {
  const { build_script, image = 'debian-12', images_dir, seed_dir } = options;
  const version = await recipeVersion(build_script, image);
  const name = version.slice(0, 12);
  const places = [join(images_dir, name), ...(seed_dir === undefined ? [] : [join(seed_dir, name)])];
  const at_hand = await Promise.all(places.map(async (dir) => (await versionIn(dir)) === version));
  const older = await currentGuestImage(images_dir).catch(() => undefined);
  if (!at_hand.includes(true) && older !== undefined && (await versionIn(older)) !== undefined) {
    return { newer: (signal) => ensureGuestImage({ ...options, signal, in_background: true }) };
  }
  await ensureGuestImage(options);
  return {};
}

export interface BuiltImage extends GuestImage {
  /** It is a new version here. */
  readonly fresh: boolean;
  /** Moves it to its place and makes it current. */
  readonly publish: () => Promise<void>;
}

/** As {@link ensureGuestImage}, but a new image is built in `staging`, and the caller publishes it after a check. */
export async function buildGuestImage(options: GuestImageOptions, staging: string): Promise<BuiltImage> {
  const { build_script, image = 'debian-12', images_dir, seed_dir, say } = options;
  const version = await recipeVersion(build_script, image);
  const name = version.slice(0, 12);
  const place = join(images_dir, name);
  await mkdir(images_dir, { recursive: true, mode: 0o755 });
  const fresh = (await versionIn(place)) !== version;
  const dir = fresh ? join(staging, name) : place;
  if (fresh) {
    const seed = seed_dir === undefined ? undefined : join(seed_dir, name);
    if (seed !== undefined && (await versionIn(seed)) === version) {
      say(`guest image ${image} (${name}): using ${seed}`);
      await copyFromSeed(seed, dir);
    } else {
      say(`guest image ${image} (${name}): building, this takes a minute or two`);
      await build(build_script, dir, image, options);
    }
  }
  if ((await versionIn(dir)) !== version) {
    throw new StartError(`the guest image in ${dir} has the wrong version`, 1);
  }
  const publish = async () => {
    if (dir !== place) {
      await rm(place, { recursive: true, force: true });
      await rename(dir, place);
    }
    await pointCurrentAt(images_dir, name);
  };
  return { dir, version, fresh, publish };
}

/** The folder that `current` below `images_dir` points to. */
export async function currentGuestImage(images_dir: string): Promise<string> {
  return join(images_dir, await readlink(join(images_dir, CURRENT)));
}

async function recipeVersion(build_script: string, image: string): Promise<string> {
  const result = await runCommand('bash', [build_script, '--version', image]);
  const version = result.stdout.trim();
  if (result.code !== 0 || !/^[0-9a-f]{12,}$/.test(version)) {
    throw new StartError(`${build_script} --version gave no version: ${lastLines(result.stderr)}`, 1);
  }
  return version;
}

/** Undefined for an incomplete image, as in the agent: a missing file, or a truncated root file system. */
async function versionIn(dir: string): Promise<string | undefined> {
  try {
    const manifest: unknown = JSON.parse(await readFile(join(dir, 'manifest.json'), 'utf8'));
    if (typeof manifest !== 'object' || manifest === null) return undefined;
    const { version, size_bytes } = manifest as Record<string, unknown>;
    const sizes = await Promise.all(FILES.map(async (name) => (await stat(join(dir, name))).size));
    if (sizes.includes(0) || sizes[FILES.indexOf('rootfs.img')] !== size_bytes) return undefined;
    return typeof version === 'string' ? version : undefined;
  } catch (error) {
    if (error instanceof SyntaxError || ['ENOENT', 'ENOTDIR'].includes(errnoOf(error) ?? ''))
      return undefined;
    throw error;
  }
}

async function build(
  build_script: string,
  dir: string,
  image: string,
  { onStep, signal, in_background }: Pick<GuestImageOptions, 'onStep' | 'signal' | 'in_background'>,
): Promise<void> {
  if (process.getuid?.() !== 0) {
    throw new StartError(
      `the guest image must be built by root once. Run: sudo ${build_script} ${dir} ${image}`,
    );
  }
  // A step may take a minute without output: on a terminal, show the seconds.
  const watched = onStep === undefined && in_background !== true && process.stdout.isTTY;
  const seconds = watched ? new SecondsLine(process.stdout) : undefined;
  const onLine = (line: string) => {
    const [, step, what] = STEP.exec(line) ?? [];
    if (step !== undefined && what !== undefined) onStep?.(Number(step), what);
    seconds?.say(line);
  };
  const passed_on = onStep === undefined && seconds === undefined;
  const result = await runCommand(
    'bash',
    [build_script, dir, image],
    passed_on ? { output: 'passed on', signal } : { onLine, signal },
  ).finally(() => seconds?.end());
  if (result.code !== 0) {
    const how = result.signal ?? `exit code ${result.code}`;
    const why = passed_on ? 'see above' : lastLines(result.stderr);
    throw new StartError(`the guest image could not be built (${how}), ${why}`, 1);
  }
}

/** Atomic. The files never change, so hard links suffice; copies across file systems. */
async function copyFromSeed(seed: string, dir: string): Promise<void> {
  const temporary = `${dir}.taking-over`;
  await rm(temporary, { recursive: true, force: true });
  await mkdir(temporary, { mode: 0o755 });
  for (const file of await readdir(seed)) {
    try {
      await link(join(seed, file), join(temporary, file));
    } catch (error) {
      if (!['EXDEV', 'EPERM', 'EMLINK'].includes(errnoOf(error) ?? '')) throw error;
      await copyFile(join(seed, file), join(temporary, file));
      await using copy = await open(join(temporary, file), 'r');
      await copy.sync();
    }
  }
  await rm(dir, { recursive: true, force: true });
  await rename(temporary, dir);
}

async function pointCurrentAt(images_dir: string, name: string): Promise<void> {
  const current = join(images_dir, CURRENT);
  if ((await readlink(current).catch(() => undefined)) === name) return;
  const temporary = `${current}.new`;
  await rm(temporary, { force: true });
  await symlink(name, temporary);
  await rename(temporary, current);
}
