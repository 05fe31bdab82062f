/**
 * Kills or pauses sandboxes whose time is over, with the adapter's own API key. So a sandbox ends also after the key
 * that made it was revoked.
 *
 * The end of a sandbox is stored only in the labels of its instance. All sandboxes are read at the start and once a
 * minute, so an end survives a restart of the adapter. A timer only decides when a sandbox is read again.
 */
import { type Berth, BerthError, type Instance } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';
import { endOf, instanceIdOf, onTimeoutOf, SANDBOX_LABEL, sandboxIdOf, stateOf } from './sandbox.ts';

const SCAN_MS = 60_000;
const RETRY_MS = 10_000;
/** A timer can wait 24 days. */
const MAX_WAIT_MS = 24 * 3600 * 1_000;

export class Deadlines {
  readonly #berth: Berth;
  readonly #log: (line: string) => void;
  /** All sandboxes of the key's organisation, with the timers of their ends. Null: it has none now. */
  readonly #timers = new Map<string, NodeJS.Timeout | null>();
  #scans: NodeJS.Timeout | undefined;

  /** @param berth with the adapter's own key */
  constructor(berth: Berth, log: (line: string) => void) {
    this.#berth = berth;
    this.#log = log;
  }

  /** Reads all sandboxes, now and once a minute. @throws BerthError if the key may not */
  async start(): Promise<void> {
    this.#scans = setInterval(
      () => void this.#scan().catch((error) => this.#failed('', error)),
      SCAN_MS,
    ).unref();
    try {
      await this.#scan();
    } catch (error) {
      if (error instanceof BerthError && error.status < 500 && error.status !== 429) throw error;
      this.#failed('', error);
    }
  }

  isKnown(sandbox_id: string): boolean {
    return this.#timers.has(sandbox_id);
  }

  /** To be called when a sandbox was made, or its end was changed. @throws Failure permission_denied if its end could not come */
  async follow(sandbox_id: string): Promise<void> {
    try {
      this.#watch(await this.#berth.instances.get(instanceIdOf(sandbox_id)));
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') throw error;
      const message =
        "This adapter serves the organisation of its own key, BERTH_API_KEY, and your key is of another: so it could not end the sandbox. Ask its operator for that organisation's adapter.";
      throw new Failure('permission_denied', message, { cause: error });
    }
  }

  forget(sandbox_id: string): void {
    clearTimeout(this.#timers.get(sandbox_id) ?? undefined);
    this.#timers.delete(sandbox_id);
  }

  close(): void {
    clearInterval(this.#scans);
    for (const id of [...this.#timers.keys()]) this.forget(id);
  }

  async #scan(): Promise<void> {
    const gone = new Set(this.#timers.keys());
    for await (const instance of this.#berth.instances.list({ label: [SANDBOX_LABEL] })) {
      gone.delete(sandboxIdOf(instance.id));
      this.#watch(instance);
    }
    for (const sandbox_id of gone) this.forget(sandbox_id);
  }

  #watch({ id, labels, vm, deleting }: Instance): void {
    const sandbox_id = sandboxIdOf(id);
    this.forget(sandbox_id);
    if (deleting) return;
    const ends_at = endOf(labels);
    // A paused one that is to be paused gets a new end by its next connect().
    const stays = onTimeoutOf(labels) === 'pause' && stateOf(vm.state) === 'paused';
    if (ends_at === null || stays) this.#timers.set(sandbox_id, null);
    else this.#lookIn(sandbox_id, ends_at.getTime() - Date.now());
  }

  #lookIn(sandbox_id: string, wait_ms: number): void {
    const timer = setTimeout(() => void this.#look(sandbox_id), Math.min(Math.max(wait_ms, 0), MAX_WAIT_MS));
    this.#timers.set(sandbox_id, timer.unref());
  }

  async #look(sandbox_id: string): Promise<void> {
    try {
      const instance = await this.#berth.instances.get(instanceIdOf(sandbox_id));
      const { id, labels, vm, deleting } = instance;
      const ends_at = endOf(labels);
      if (deleting || ends_at === null || ends_at.getTime() > Date.now()) return this.#watch(instance);
      if (onTimeoutOf(labels) === 'kill') {
        await this.#berth.instances.delete(id);
        return this.forget(sandbox_id);
      }
      if (vm.state === 'running') await this.#berth.instances.suspendVm(id);
      // One that starts just now can be suspended soon.
      if (stateOf(vm.state) === 'running') return this.#lookIn(sandbox_id, RETRY_MS);
      this.#watch(instance);
    } catch (error) {
      if (error instanceof BerthError && error.code === 'NOT_FOUND') return this.forget(sandbox_id);
      this.#failed(sandbox_id, error);
      this.#lookIn(sandbox_id, RETRY_MS);
    }
  }

  #failed(sandbox_id: string, error: unknown): void {
    const whose = sandbox_id === '' ? 'the ends of sandboxes' : `the end of sandbox ${sandbox_id}`;
    this.#log(`${whose}: ${error instanceof Error ? error.message : String(error)}; tried again soon`);
  }
}
