/**
 * A template's memory in a machine of an instance, and the line that makes that instance of it. Before the line the guest
 * has no disk, no network, no secret, and runs nothing but the program that waits for it (guest/initrd/wake).
 */
import { randomBytes } from 'node:crypto';
import { openAgentChannel } from '../guest/agent-channel.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { differenceOf, qemuVersion } from '../vm/machine-traits.ts';
import { loadStream } from '../vm/migration.ts';
import { readTemplate, type Template } from './template-files.ts';

export const ASLEEP = 'berth-asleep';
const AWAKE = 'berth-awake';
/** What a generator of the kernel is given; it needs 32. */
const SEED_BYTES = 64;
const LOAD_MS = 60_000;
/** A few milliseconds of processor time; the host may have none for a while. */
const WAKE_MS = 60_000;

export interface Sleeper {
  readonly qmp: QmpClient;
  readonly incoming_socket: string;
  readonly qemu_log: string;
  readonly signal: AbortSignal;
}

/** Into a QEMU that waits for it; nothing of the guest has run when this fails. */
export async function loadTemplate(
  template: Template,
  { qmp, incoming_socket, qemu_log, signal }: Sleeper,
): Promise<void> {
  const difference = differenceOf(template.traits, { qemu: await qemuVersion(qmp) });
  if (difference) throw new Error(difference);
  const inlet = { path: incoming_socket, qemu_log, timeout_ms: LOAD_MS, signal };
  await loadStream(qmp, inlet, (within) => readTemplate(template, within));
}

/** Resolves once the guest draws random numbers of its own and knows which instance it is; it goes on to look at its disk. */
export async function wakeMachine(
  agent_socket: string,
  kernel_parameters: string,
  signal: AbortSignal,
): Promise<void> {
  const deadline = performance.now() + WAKE_MS;
  const channel = await openAgentChannel(agent_socket, deadline);
  const given_up = () => channel.destroy(new Error('the start was given up'));
  signal.addEventListener('abort', given_up, { once: true });
  try {
    signal.throwIfAborted();
    const seed = randomBytes(SEED_BYTES).toString('hex');
    const time_ns = BigInt(Date.now()) * 1_000_000n;
    channel.send(Buffer.from(`${seed} ${time_ns} ${kernel_parameters}\n`));
    while ((await channel.nextLine(deadline, 'waking')).toString('latin1').trim() !== AWAKE);
  } finally {
    signal.removeEventListener('abort', given_up);
    // The guest agent will be spoken to by this channel; it takes one at a time.
    channel.destroy(new Error('the guest is awake'));
  }
}
