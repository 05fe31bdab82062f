/**
 * The templates of a host, in `templates/<key>/`: `memory`, QEMU's stream of a booted machine that waits to be told which
 * instance it is, and `template.json`, which says what machine that is and what the stream's digest is. A cache, ours alone.
 *
 * Invariants:
 * - a template gets its folder when all of it is on the disk: what a crash leaves is in `making`, or is nothing;
 * - the key says all that must be equal and is known before a QEMU runs; its version is compared with that of the one that does;
 * - no guest goes on from a stream whose digest was not found to be right: each file that an agent meets is read once for that,
 *   and again whenever it is not that file any more (inode, size, times);
 * - bounded in number, bytes and age: the one that was used longest ago goes first.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import type { MachineTraits } from '../../agent-api/types.ts';
import { noteGarbage } from '../../lib/release.ts';
import type { HostImage } from '../image/host-images.ts';
import { syncFolder, writeFileDurably } from '../vm/durable-file.ts';
import { hardwareTraits } from '../vm/machine-traits.ts';
import type { Accelerator } from '../vm/qemu-command.ts';

/** Goes into every key: another number, and what older programs have made is never used. */
const FORMAT = 2;
export const MAX_TEMPLATES = 8;
export const MAX_TEMPLATES_BYTES = 2 * 2 ** 30;
/** What the kernel drew as it booted (where it lies in memory, for one) is the same in all that come from one template. */
export const MAX_AGE_MS = 7 * 24 * 3_600_000;
const CHUNK_BYTES = 1024 * 1024;
const KEY = /^[0-9a-f]{32}$/;

/** What a machine must be to go on from a template. */
export interface Shape {
  readonly image: HostImage;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
}

/** template.json */
interface Description {
  readonly traits: MachineTraits;
  readonly bytes: number;
  readonly sha256: string;
  /** Its guest is told in lines, with files; else in one line. */
  readonly takes_files: boolean;
  readonly made_at_ms: number;
}

export interface Template extends Description {
  readonly key: string;
  readonly folder: string;
}

export function templateKey({ image, cpus, memory_mib, accel }: Shape): string {
  const { version, manifest } = image;
  const traits = hardwareTraits({ cpus, memory_mib, accel, image_version: version });
  // What KVM shows of the host's CPU may change with its kernel and microcode.
  const host_boot = accel === 'kvm' ? readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim() : '';
  const { vmlinuz, 'initrd.img': initrd } = manifest.files;
  return createHash('sha256')
    .update(JSON.stringify({ FORMAT, traits, host_boot, vmlinuz, initrd }))
    .digest('hex')
    .slice(0, 32);
}

/** null where there is none, or none that could be used. */
export async function findTemplate(templates_dir: string, key: string): Promise<Template | null> {
  const folder = join(templates_dir, key);
  try {
    const description: unknown = JSON.parse(await readFile(join(folder, 'template.json'), 'utf8'));
    if (!isDescription(description)) return null;
    const { size } = await stat(join(folder, 'memory'));
    const age_ms = Date.now() - description.made_at_ms;
    if (size !== description.bytes || age_ms < 0 || age_ms > MAX_AGE_MS) return null;
    return { ...description, key, folder };
  } catch {
    return null;
  }
}

/** It was used: others go before it. */
export async function noteUse({ folder }: Template): Promise<void> {
  const now = new Date();
  await utimes(join(folder, 'template.json'), now, now).catch(() => undefined);
}

/** Its stream. */
export function openMemory({ folder }: Template): Promise<FileHandle> {
  return open(join(folder, 'memory'), 'r');
}

/** Another one after any write to it, or anything in its place. */
export async function identityOf(file: FileHandle): Promise<string> {
  const { dev, ino, size, mtimeNs, ctimeNs } = await file.stat({ bigint: true });
  return [dev, ino, size, mtimeNs, ctimeNs].join(' ');
}

/** Reads it without moving where others read. @throws unless it is what was written */
export async function verifyMemory(file: FileHandle, template: Template): Promise<void> {
  const hash = createHash('sha256');
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
  for (let at = 0; ; ) {
    const { bytesRead } = await file.read(buffer, 0, CHUNK_BYTES, at);
    if (bytesRead === 0) break;
    hash.update(buffer.subarray(0, bytesRead));
    at += bytesRead;
  }
  if (hash.digest('hex') !== template.sha256) throw new Error('the template is damaged');
}

/** What `stream` brings, into the folder where a template is made. */
export async function writeMemory(
  templates_dir: string,
  stream: AsyncIterable<Buffer>,
  max_bytes: number,
): Promise<Pick<Description, 'bytes' | 'sha256'>> {
  const folder = newFolder(templates_dir);
  await mkdir(folder, { mode: 0o700 });
  const hash = createHash('sha256');
  let bytes = 0;
  await using file = await open(join(folder, 'memory'), 'wx', 0o600);
  for await (const chunk of stream) {
    bytes += chunk.length;
    if (bytes > max_bytes) throw new Error(`the memory is larger than ${max_bytes} bytes`);
    hash.update(chunk);
    await file.writeFile(chunk);
    noteGarbage(chunk.length);
  }
  await file.sync();
  return { bytes, sha256: hash.digest('hex') };
}

/** Makes what was written a template, in place of an older one. It is there, and on the disk, when this returns. */
export async function publishTemplate(
  templates_dir: string,
  key: string,
  made: Omit<Description, 'made_at_ms'>,
): Promise<void> {
  const folder = newFolder(templates_dir);
  const description: Description = { ...made, made_at_ms: Date.now() };
  await writeFileDurably(join(folder, 'template.json'), `${JSON.stringify(description)}\n`);
  await removeTemplate(templates_dir, key);
  await rename(folder, join(templates_dir, key));
  await syncFolder(templates_dir);
}

/** Where one is made; no other is at the same time. */
export function makingFolder(templates_dir: string): string {
  return join(templates_dir, 'making');
}

function newFolder(templates_dir: string): string {
  return join(makingFolder(templates_dir), 'template');
}

export async function removeTemplate(templates_dir: string, key: string): Promise<void> {
  await rm(join(templates_dir, key), { recursive: true, force: true });
}

/** Removes what cannot be used any more, what is not a template, and past the bounds what was not used for longest. */
export async function boundTemplates(
  templates_dir: string,
  isImageHere: (image_version: string) => boolean,
): Promise<void> {
  const kept: { readonly template: Template; readonly used_ms: number }[] = [];
  for (const name of await readdir(templates_dir)) {
    const template = KEY.test(name) ? await findTemplate(templates_dir, name) : null;
    if (!template || !isImageHere(template.traits.image_version)) {
      await rm(join(templates_dir, name), { recursive: true, force: true });
      continue;
    }
    kept.push({ template, used_ms: (await stat(join(template.folder, 'template.json'))).mtimeMs });
  }
  kept.sort((a, b) => b.used_ms - a.used_ms);
  let bytes = 0;
  for (const [at, { template }] of kept.entries()) {
    bytes += template.bytes;
    if (at >= MAX_TEMPLATES || bytes > MAX_TEMPLATES_BYTES) await removeTemplate(templates_dir, template.key);
  }
}

function isDescription(value: unknown): value is Description {
  if (typeof value !== 'object' || value === null) return false;
  const { traits, bytes, sha256, takes_files, made_at_ms } = value as Record<string, unknown>;
  if (typeof traits !== 'object' || traits === null) return false;
  const { hardware, qemu, host_cpu, image_version } = traits as Record<string, unknown>;
  const texts = [hardware, qemu, host_cpu, image_version, sha256];
  return (
    texts.every((each) => typeof each === 'string') &&
    typeof takes_files === 'boolean' &&
    Number.isSafeInteger(bytes) &&
    Number.isSafeInteger(made_at_ms)
  );
}
