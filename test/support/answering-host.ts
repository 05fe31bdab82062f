/**
 * A host of a fleet without VMs: it polls for calls like an agent, and answers each as the test wants. It counts what it was asked,
 * so that a test sees a call that came twice.
 */
import type { Duplex } from 'node:stream';
import type { ControlPlaneClient } from '../../src/protocol/client.ts';
import type { HostCall, PendingCall } from '../../src/protocol/host-calls.ts';
import { pause } from '../../src/shared/retry.ts';
import type { ScriptedAgent } from './scripted-agent.ts';

const SAMPLE = {
  at: '2026-01-02T03:04:05.678Z',
  cpu_seconds: 1,
  memory: { host_bytes: 1, used_bytes: null, total_bytes: null },
  disk: { read_bytes: 0, written_bytes: 0, read_operations: 0, write_operations: 0 },
  network: { received_bytes: null, sent_bytes: null },
};

const RETRY_MS = 50;

export class AnsweringHost {
  /** The commands that it ran, each as one text. */
  readonly ran: string[] = [];
  readonly #client: ControlPlaneClient;
  readonly #ending = new AbortController();
  readonly #loop: Promise<void>;
  /** A command that begins so is answered only when the test says so. */
  #held: { readonly command: string; readonly until: Promise<void> } | null = null;

  constructor(agent: ScriptedAgent) {
    this.#client = agent.client;
    this.#loop = this.#run();
  }

  /** Returns the function that lets it be answered. */
  hold(command: string): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#held = { command, until: promise };
    return resolve;
  }

  async close(): Promise<void> {
    this.#ending.abort();
    await this.#loop;
  }

  async #run(): Promise<void> {
    const { signal } = this.#ending;
    while (!signal.aborted) {
      try {
        const { calls } = await this.#client.calls({ fresh: false }, signal);
        for (const call of calls) void this.#serve(call).catch(() => undefined);
      } catch {
        // As an agent does, before it tries the next control plane.
        await pause(RETRY_MS, signal);
      }
    }
  }

  async #serve({ id, call }: PendingCall): Promise<void> {
    const result = await this.#result(id, call);
    for (let attempt = 0; attempt < 3; attempt++) {
      try {
        await this.#client.answerCall({ id, answer: { result } });
        return;
      } catch {
        // As an agent does, which goes on to the next control plane.
      }
    }
  }

  async #result(id: string, call: HostCall): Promise<unknown> {
    if (call.kind === 'exec') {
      const command = call.command.join(' ');
      this.ran.push(command);
      if (this.#held && command.startsWith(this.#held.command)) await this.#held.until;
      return { exit_code: 0, stdout: `ran ${command}`, stderr: '', truncated: false };
    }
    if (call.kind === 'console_log') return { text: 'its console\n' };
    if (call.kind === 'metrics') return { now: SAMPLE, interval_seconds: 60, samples: [] };
    const stream: Duplex = await this.#client.openConsole(id);
    stream.on('error', () => stream.destroy());
    // What it gets comes back.
    stream.pipe(stream);
    return null;
  }
}
