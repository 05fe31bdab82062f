/**
 * Stores the templates of this host, and wakes a machine from one. `templates/<key>/` has `memory`, QEMU's migration
 * stream of a booted machine that waits for the identity of an instance, and `template.json`, with the machine's shape
 * and the stream's digest. The folder is a cache.
 *
 * - A template gets its folder when it is complete and durable. A crash leaves files in `making` only.
 * - The key covers everything that must be equal and is known before QEMU runs. QEMU's version is compared when QEMU
 *   runs.
 * - A guest runs only from a stream with the right digest. An agent verifies each file once, and again after it has
 *   changed (inode, size, times).
 * - Templates are limited in number, bytes and age. The least recently used is evicted first.
 */
import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import type { MachineTraits } from '../../protocol/types.ts';
import { release } from '../../shared/release.ts';
import { syncFolder, writeFileDurably } from '../durable-file.ts';
import { openAgentChannel } from '../guest/guest-agent.ts';
import type { LocalImage } from '../images/host-images.ts';
import type { VmNetwork } from '../network/addresses.ts';
import { differenceOf, hardwareTraits, loadFile, qemuVersion } from '../qemu/migration.ts';
import type { Accelerator } from '../qemu/qemu-command.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';

/** Part of every key: a new number makes all older templates unused. */
const FORMAT = 2;
export const MAX_TEMPLATES = 8;
const MAX_TEMPLATES_BYTES = 2 * 2 ** 30;
/** All guests of a template share what the kernel randomised at boot (its address, for example), so templates expire. */
export const MAX_AGE_MS = 7 * 24 * 3_600_000;
const CHUNK_BYTES = 1024 * 1024;
const KEY = /^[0-9a-f]{32}$/;

/** The properties that a machine must share with its template. */
export interface Shape {
  readonly image: LocalImage;
  readonly cpus: number;
  readonly memory_mib: number;
  readonly accel: Accelerator;
  readonly network: VmNetwork['kind'];
}

/** template.json */
interface Description {
  readonly traits: MachineTraits;
  readonly bytes: number;
  readonly sha256: string;
  readonly made_at_ms: number;
}

export interface Template extends Description {
  readonly key: string;
  readonly folder: string;
}

export function templateKey({ image, cpus, memory_mib, accel, network }: Shape): string {
  const { version, manifest } = image;
  const traits = hardwareTraits({ cpus, memory_mib, accel, image_version: version, network });
  // The CPU that KVM shows may change with the host's kernel and microcode.
  const host_boot = accel === 'kvm' ? readFileSync('/proc/sys/kernel/random/boot_id', 'latin1').trim() : '';
  const { vmlinuz, 'initrd.img': initrd } = manifest.files;
  return createHash('sha256')
    .update(JSON.stringify({ FORMAT, traits, host_boot, vmlinuz, initrd }))
    .digest('hex')
    .slice(0, 32);
}

/** null: there is no usable template. */
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

/** Marks it as used, so that others are evicted first. */
export async function noteUse({ folder }: Template): Promise<void> {
  const now = new Date();
  await utimes(join(folder, 'template.json'), now, now).catch(() => undefined);
}

/** Opens its stream. */
export function openMemory({ folder }: Template): Promise<FileHandle> {
  return open(join(folder, 'memory'), 'r');
}

/** Changes when the file is written or replaced. */
export async function fileIdentity(file: FileHandle): Promise<string> {
  const { dev, ino, size, mtimeNs, ctimeNs } = await file.stat({ bigint: true });
  return [dev, ino, size, mtimeNs, ctimeNs].join(' ');
}

/** Verifies the digest, without moving the file's position. @throws when it is wrong */
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

/** Writes `stream` into the folder where a template is made. */
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
    if (chunk.length === chunk.buffer.byteLength) release(chunk);
  }
  await file.sync();
  return { bytes, sha256: hash.digest('hex') };
}

/** Publishes the written template in place of an older one. It is durable when this resolves. */
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

/** The folder where a template is made, one at a time. */
export function makingFolder(templates_dir: string): string {
  return join(templates_dir, 'making');
}

function newFolder(templates_dir: string): string {
  return join(makingFolder(templates_dir), 'template');
}

export async function removeTemplate(templates_dir: string, key: string): Promise<void> {
  await rm(join(templates_dir, key), { recursive: true, force: true });
}

/** Removes expired templates, other files, and beyond the limits the least recently used templates. */
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
  const { traits, bytes, sha256, made_at_ms } = value as Record<string, unknown>;
  if (typeof traits !== 'object' || traits === null) return false;
  const { hardware, qemu, host_cpu, image_version } = traits as Record<string, unknown>;
  const texts = [hardware, qemu, host_cpu, image_version, sha256];
  return (
    texts.every((each) => typeof each === 'string') &&
    Number.isSafeInteger(bytes) &&
    Number.isSafeInteger(made_at_ms)
  );
}

const TYPE = 'ssh-ed25519';
const LINE = /.{1,70}/g;
/** The padding of an unencrypted key (PROTOCOL.key in OpenSSH's sources). */
const BLOCK_BYTES = 8;

export interface HostKeyFiles {
  readonly host_key: string;
  readonly host_key_pub: string;
}

/** Makes an SSH host key like `ssh-keygen -t ed25519`, which takes half a second in an emulated guest. */
export function makeHostKey(): HostKeyFiles {
  const { x, d } = generateKeyPairSync('ed25519').privateKey.export({ format: 'jwk' });
  const [public_half, seed] = [Buffer.from(String(x), 'base64url'), Buffer.from(String(d), 'base64url')];
  const public_blob = Buffer.concat([text(TYPE), text(public_half)]);
  const check = randomBytes(4);
  const secret = Buffer.concat([
    ...[check, check, public_blob, text(Buffer.concat([seed, public_half]))],
    text(''), // no comment
  ]);
  const padding = Buffer.from(
    Array.from({ length: (BLOCK_BYTES - (secret.length % BLOCK_BYTES)) % BLOCK_BYTES }, (_, at) => at + 1),
  );
  const all = Buffer.concat([
    ...[Buffer.from('openssh-key-v1\0'), text('none'), text('none'), text('')],
    ...[Buffer.from([0, 0, 0, 1]), text(public_blob), text(Buffer.concat([secret, padding]))],
  ]);
  const lines = all.toString('base64').match(LINE) ?? [];
  return {
    host_key: ['-----BEGIN OPENSSH PRIVATE KEY-----', ...lines, '-----END OPENSSH PRIVATE KEY-----', ''].join(
      '\n',
    ),
    host_key_pub: `${TYPE} ${public_blob.toString('base64')}\n`,
  };
}

/** RFC 4251, section 5: `string`. */
function text(value: string | Buffer): Buffer {
  const bytes = Buffer.from(value);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}

const ASLEEP = 'berth-asleep files';
const AWAKE = 'berth-awake';
/** The seed of the kernel's random number generator, which needs 32. */
const SEED_BYTES = 64;
const LOAD_MS = 60_000;
/** It needs a few milliseconds of processor time, but the host may be busy. */
const WAKE_MS = 60_000;

export interface Sleeper {
  readonly qmp: QmpClient;
  readonly qemu_log: string;
  readonly signal: AbortSignal;
}

/** Whether a line of the guest says that it waits for its identity. */
export function isAsleep(line: Buffer): boolean {
  return line.toString('latin1').trim() === ASLEEP;
}

/** Loads the memory into a QEMU started with `-incoming`. When it fails, the guest has not run. */
export async function loadTemplate(
  template: Template,
  verified: Promise<void>,
  { qmp, qemu_log, signal }: Sleeper,
): Promise<void> {
  const difference = differenceOf(template.traits, { qemu: await qemuVersion(qmp) });
  if (difference) throw new Error(difference);
  await Promise.all([loadFile(qmp, { qemu_log, timeout_ms: LOAD_MS, signal }), verified]);
}

/** What makes a template's machine that of an instance. */
export interface GuestIdentity {
  readonly kernel_parameters: string;
  /** The network card's address: the loaded memory has the template's. */
  readonly mac: string;
  /** Lines of authorized_keys. */
  readonly authorized_keys: readonly string[];
}

/**
 * Sends the lines that give a machine with a template's memory the instance's identity. Until then the guest has no disk, network or
 * secret, and runs only its first process, which waits (guest/initrd/init). Resolves once the guest has its own random seed and
 * identity. It then continues to boot from its disk.
 */
export async function wakeMachine(
  agent_socket: string,
  identity: GuestIdentity,
  signal: AbortSignal,
): Promise<void> {
  const deadline = performance.now() + WAKE_MS;
  const channel = await openAgentChannel(agent_socket, deadline);
  const given_up = () => channel.destroy(new Error('the start was cancelled'));
  signal.addEventListener('abort', given_up, { once: true });
  try {
    signal.throwIfAborted();
    channel.send(Buffer.from(linesOf(identity)));
    while ((await channel.nextLine(deadline, 'waking')).toString('latin1').trim() !== AWAKE);
  } finally {
    signal.removeEventListener('abort', given_up);
    // The guest agent will use this channel, which accepts one connection at a time.
    channel.destroy(new Error('the guest is awake'));
  }
}

/** The guest uses the host key only if its disk has none, or has another instance's. */
function linesOf({ kernel_parameters, mac, authorized_keys }: GuestIdentity): string {
  const files = { ...makeHostKey(), authorized_keys: authorized_keys.map((line) => `${line}\n`).join('') };
  return [
    `seed ${randomBytes(SEED_BYTES).toString('hex')}`,
    `time ${BigInt(Date.now()) * 1_000_000n}`,
    `words ${kernel_parameters}`,
    `mac ${mac}`,
    ...Object.entries(files).map(([name, text]) => `file ${name} ${Buffer.from(text).toString('hex')}`),
    'end\n',
  ].join('\n');
}
