/**
 * Starts and controls the other processes of the webhook benchmark: the receiver, and the baseline loop of POST
 * requests.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { BareLoop } from './bare-post.ts';
import type { FromReceiver, ToReceiver } from './webhook-receiver.ts';

export type Count = Extract<FromReceiver, { counted: number }>;

export class ReceiverProcess {
  readonly origins: readonly string[];
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess, origins: readonly string[]) {
    this.#child = child;
    this.origins = origins;
  }

  /** Listens on this many addresses. */
  static async start(endpoints: number): Promise<ReceiverProcess> {
    const child = fork(join(import.meta.dirname, 'webhook-receiver.ts'), { stdio: 'inherit' });
    child.send({ listen: endpoints } satisfies ToReceiver);
    const [message] = (await once(child, 'message')) as [Extract<FromReceiver, { origins: unknown }>];
    return new ReceiverProcess(child, message.origins);
  }

  /** Runs `send`, and resolves when this many requests have arrived. */
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

  end(): Promise<void> {
    return kill(this.#child);
  }
}

export type Loop = Omit<BareLoop, 'dispatcher' | 'answered'>;
export interface ToLoop {
  readonly id: number;
  readonly loop: Loop;
  /** On new connections, closed afterwards. */
  readonly anew: boolean;
}
export interface FromLoop {
  readonly id: number;
  readonly answered_ms: readonly number[];
  readonly error: string | null;
}

export class LoopProcess {
  readonly #child = fork(join(import.meta.dirname, 'loop-process.ts'), { stdio: 'inherit' });
  readonly #asked = new Map<number, PromiseWithResolvers<readonly number[]>>();
  #id = 0;

  constructor() {
    this.#child.on('message', ({ id, answered_ms, error }: FromLoop) => {
      const asked = this.#asked.get(id);
      this.#asked.delete(id);
      if (error === null) asked?.resolve(answered_ms);
      else asked?.reject(new Error(error));
    });
    this.#child.on('exit', () => {
      for (const { reject } of this.#asked.values()) reject(new Error('the process of the loop has ended'));
    });
  }

  /** The time from the loop's beginning to each answer, in milliseconds. */
  post(loop: Loop, anew = false): Promise<readonly number[]> {
    const asked = Promise.withResolvers<readonly number[]>();
    const id = this.#id++;
    this.#asked.set(id, asked);
    this.#child.send({ id, loop, anew } satisfies ToLoop);
    return asked.promise;
  }

  end(): Promise<void> {
    return kill(this.#child);
  }
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGKILL');
  await once(child, 'exit');
}
