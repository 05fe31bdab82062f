/**
 * Loads a template's memory into an instance's machine, then sends the lines that give it the instance's identity. Until
 * then the guest has no disk, network or secret, and runs only its first process, which waits (guest/initrd/init).
 */
import { randomBytes } from 'node:crypto';
import { openAgentChannel } from '../guest/guest-agent.ts';
import { differenceOf, qemuVersion } from '../qemu/machine-traits.ts';
import { loadFile } from '../qemu/migration.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { makeHostKey } from './make-host-key.ts';
import type { Template } from './template-files.ts';

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

/** Resolves once the guest has its own random seed and identity. It then continues to boot from its disk. */
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
