/** The other side of the webhook benchmark: its receiver's process, spoken to. */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { FromReceiver, ToReceiver } from './webhook-receiver.ts';

export type Count = Extract<FromReceiver, { counted: number }>;

export class ReceiverProcess {
  readonly origins: readonly string[];
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess, origins: readonly string[]) {
    this.#child = child;
    this.origins = origins;
  }

  /** Listens on so many addresses. */
  static async start(endpoints: number): Promise<ReceiverProcess> {
    const child = fork(join(import.meta.dirname, 'webhook-receiver.ts'), { stdio: 'inherit' });
    child.send({ listen: endpoints } satisfies ToReceiver);
    const [message] = (await once(child, 'message')) as [Extract<FromReceiver, { origins: unknown }>];
    return new ReceiverProcess(child, message.origins);
  }

  /** Counts what comes while and after `send` runs; resolves when so many requests have come. */
  async count(
    expect: number,
    delays: boolean,
    signal: AbortSignal,
    send: () => Promise<void>,
  ): Promise<Count> {
    const ready = once(this.#child, 'message', { signal });
    this.#child.send({ expect, delays } satisfies ToReceiver);
    await ready;
    const answer = once(this.#child, 'message', { signal }) as Promise<[Count]>;
    const [[count]] = await Promise.all([answer, send()]);
    return count;
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    this.#child.kill('SIGKILL');
    await once(this.#child, 'exit');
  }
}
