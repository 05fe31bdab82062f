/**
 * A template's memory in a machine of an instance, and the lines that make that instance of it. Before them the guest has no
 * disk, no network, no secret, and runs nothing but its first process, which waits for them (guest/initrd/init).
 *
 * A guest of an image from before it took files is told in one line of three, and goes on without them.
 */
import { randomBytes } from 'node:crypto';
import { openAgentChannel } from '../guest/agent-channel.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { differenceOf, qemuVersion } from '../vm/machine-traits.ts';
import { loadFile } from '../vm/migration.ts';
import { makeHostKey } from './make-host-key.ts';
import type { Template } from './template-files.ts';

const ASLEEP = /^berth-asleep( files)?$/;
const AWAKE = 'berth-awake';
/** What a generator of the kernel is given; it needs 32. */
const SEED_BYTES = 64;
const LOAD_MS = 60_000;
/** A few milliseconds of processor time; the host may have none for a while. */
const WAKE_MS = 60_000;

export interface Sleeper {
  readonly qmp: QmpClient;
  readonly qemu_log: string;
  readonly signal: AbortSignal;
}

/** What a line of the guest says: that it waits, and for which lines. null: something else. */
export function asleep(line: Buffer): { readonly takes_files: boolean } | null {
  const said = ASLEEP.exec(line.toString('latin1').trim());
  return said && { takes_files: said[1] !== undefined };
}

/** Into a QEMU that was started to wait for it; nothing of the guest has run when this fails. */
export async function loadTemplate(
  template: Template,
  verified: Promise<void>,
  { qmp, qemu_log, signal }: Sleeper,
): Promise<void> {
  const difference = differenceOf(template.traits, { qemu: await qemuVersion(qmp) });
  if (difference) throw new Error(difference);
  await Promise.all([loadFile(qmp, { qemu_log, timeout_ms: LOAD_MS, signal }), verified]);
}

export interface Told {
  readonly kernel_parameters: string;
  /** Of its network card: what came with the memory has the template's. */
  readonly mac: string;
  /** Lines of authorized_keys. */
  readonly authorized_keys: readonly string[];
}

/** Resolves once the guest draws random numbers of its own and knows which instance it is; it goes on to look at its disk. */
export async function wakeMachine(
  agent_socket: string,
  { takes_files }: Pick<Template, 'takes_files'>,
  told: Told,
  signal: AbortSignal,
): Promise<void> {
  const deadline = performance.now() + WAKE_MS;
  const channel = await openAgentChannel(agent_socket, deadline);
  const given_up = () => channel.destroy(new Error('the start was given up'));
  signal.addEventListener('abort', given_up, { once: true });
  try {
    signal.throwIfAborted();
    channel.send(Buffer.from(takes_files ? inLines(told) : inOne(told)));
    while ((await channel.nextLine(deadline, 'waking')).toString('latin1').trim() !== AWAKE);
  } finally {
    signal.removeEventListener('abort', given_up);
    // The guest agent will be spoken to by this channel; it takes one at a time.
    channel.destroy(new Error('the guest is awake'));
  }
}

/** The host key is for a disk that has none, or another instance's; on any other the guest forgets it. */
function inLines({ kernel_parameters, mac, authorized_keys }: Told): string {
  const files = { ...makeHostKey(), authorized_keys: authorized_keys.map((line) => `${line}\n`).join('') };
  return [
    `seed ${seed()}`,
    `time ${timeNs()}`,
    `words ${kernel_parameters}`,
    `mac ${mac}`,
    ...Object.entries(files).map(([name, text]) => `file ${name} ${Buffer.from(text).toString('hex')}`),
    'end\n',
  ].join('\n');
}

function inOne({ kernel_parameters }: Told): string {
  return `${seed()} ${timeNs()} ${kernel_parameters}\n`;
}

function seed(): string {
  return randomBytes(SEED_BYTES).toString('hex');
}

function timeNs(): bigint {
  return BigInt(Date.now()) * 1_000_000n;
}
