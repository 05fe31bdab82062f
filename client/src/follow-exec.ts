/** The output of an exec as it comes. The stream is opened again, at the byte that it has reached, when its connection breaks. */
import type { Exec } from './generated.ts';
import { endOf, framesOf, isTransient } from './streams.ts';
import { backoffMs, type CallOptions, type Transport, wait } from './transport.ts';

export interface ExecOutput {
  readonly stream: 'stdout' | 'stderr';
  /** Of the first byte, counting the bytes of both streams. It jumps where output is no longer kept. */
  readonly offset: number;
  readonly bytes: Uint8Array;
}

export interface ExecPlace {
  readonly instance_id: string;
  readonly exec_id: string;
  /** Where to begin. */
  readonly offset: number;
}

/** Yields the output, and returns the exec once it has ended. @throws BerthError, the signal's reason */
export async function* followExec(
  transport: Transport,
  { instance_id, exec_id, offset }: ExecPlace,
  { signal }: Pick<CallOptions, 'signal'> = {},
): AsyncGenerator<ExecOutput, Exec, undefined> {
  const path = { id: instance_id, exec_id };
  let reached = offset;
  for (let failures = 0; ; failures++) {
    try {
      const query = { offset: reached, follow: 'true' } as const;
      for await (const { id, event, text } of framesOf(
        transport,
        'getExecOutput',
        { path, query },
        { signal },
      )) {
        failures = 0;
        if (event === 'exit') return JSON.parse(text) as Exec;
        if (event === 'end') throw endOf({ data: JSON.parse(text) });
        if (event !== 'stdout' && event !== 'stderr') continue;
        const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
        reached = Number(id);
        yield { stream: event, offset: reached - bytes.length, bytes };
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!isTransient(error)) throw error;
    }
    await wait(backoffMs(Math.min(failures, 5)), signal);
  }
}
