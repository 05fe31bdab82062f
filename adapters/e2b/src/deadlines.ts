/**
 * The end of each sandbox's time, and the API key that may end it: in memory only. The label has the truth; a timer only says
 * when to look at it. After a restart a sandbox is known again once its API key is used, or at once if it is the adapter's own.
 */
import { Berth, BerthError, type BerthOptions } from '../../../client/src/berth.ts';
import { endOf, instanceIdOf, onTimeoutOf, SANDBOX_LABEL, sandboxIdOf, stateOf } from './sandbox.ts';

const MAX_SANDBOXES = 100_000;
/** A timer can wait 24 days. */
const MAX_WAIT_MS = 24 * 3600 * 1_000;
const RETRY_MS = 10_000;

interface Known {
  readonly api_key: string;
  readonly timer: NodeJS.Timeout;
}

export type Client = (api_key: string) => Berth;
export const clientOf =
  (options: Omit<BerthOptions, 'token'>): Client =>
  (api_key) =>
    new Berth({ ...options, token: api_key });

export class Deadlines {
  readonly #client: Client;
  readonly #log: (line: string) => void;
  readonly #known = new Map<string, Known>();

  constructor(client: Client, log: (line: string) => void) {
    this.#client = client;
    this.#log = log;
  }

  /** The API key that made or last used the sandbox. */
  apiKeyOf(sandbox_id: string): string | undefined {
    return this.#known.get(sandbox_id)?.api_key;
  }

  /** To be called with the labels whenever they were read. */
  watch(sandbox_id: string, api_key: string, ends_at: Date | null): void {
    const left_ms = ends_at === null ? MAX_WAIT_MS : ends_at.getTime() - Date.now();
    this.#set(sandbox_id, api_key, left_ms);
  }

  forget(sandbox_id: string): void {
    clearTimeout(this.#known.get(sandbox_id)?.timer);
    this.#known.delete(sandbox_id);
  }

  /** Learns all sandboxes of an API key. */
  async learn(api_key: string): Promise<void> {
    for await (const { id, labels } of this.#client(api_key).instances.list({ label: [SANDBOX_LABEL] }))
      this.watch(sandboxIdOf(id), api_key, endOf(labels));
  }

  close(): void {
    for (const id of [...this.#known.keys()]) this.forget(id);
  }

  #set(sandbox_id: string, api_key: string, in_ms: number): void {
    this.forget(sandbox_id);
    const oldest = this.#known.keys().next().value;
    if (oldest !== undefined && this.#known.size >= MAX_SANDBOXES) this.forget(oldest);
    const wait_ms = Math.min(Math.max(in_ms, 0), MAX_WAIT_MS);
    const timer = setTimeout(() => void this.#look(sandbox_id, api_key), wait_ms).unref();
    this.#known.set(sandbox_id, { api_key, timer });
  }

  async #look(sandbox_id: string, api_key: string): Promise<void> {
    const berth = this.#client(api_key);
    const id = instanceIdOf(sandbox_id);
    try {
      const { labels, vm } = await berth.instances.get(id);
      const ends_at = endOf(labels);
      if (ends_at === null || ends_at.getTime() > Date.now()) return this.watch(sandbox_id, api_key, ends_at);
      if (onTimeoutOf(labels) === 'kill') {
        await berth.instances.delete(id);
        return this.forget(sandbox_id);
      }
      if (vm.state === 'running') await berth.instances.suspendVm(id);
      if (stateOf(vm.state) === 'running') return this.#set(sandbox_id, api_key, RETRY_MS);
      // It is paused, and its next connect() sets a new end.
      this.#set(sandbox_id, api_key, MAX_WAIT_MS);
    } catch (error) {
      if (error instanceof BerthError && ['NOT_FOUND', 'UNAUTHENTICATED', 'FORBIDDEN'].includes(error.code)) {
        this.#log(`the end of sandbox ${sandbox_id}: ${error.code}`);
        return this.forget(sandbox_id);
      }
      this.#log(`the end of sandbox ${sandbox_id}: ${String(error)}; tried again in 10 s`);
      this.#set(sandbox_id, api_key, RETRY_MS);
    }
  }
}
