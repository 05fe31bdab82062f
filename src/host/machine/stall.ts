/**
 * A guest that stands still because a disk request of its own failed on this host (`werror=stop`, `rerror=stop`). QEMU
 * keeps the request; it is tried again every second, and the guest never hears of it.
 *
 *   going ──BLOCK_IO_ERROR──▶ stalled ──cont, and nothing failed for some seconds──▶ going
 */
import type { Reason } from '../../agent-api/types.ts';
import { messageOf } from '../../lib/errors.ts';
import type { Log } from '../../lib/log.ts';
import { untrustedText } from '../../lib/untrusted-text.ts';
import type { QmpEventData } from '../qmp/types.ts';

const RETRY_MS = 1_000;
/** A guest that was let go on hits a full disk again with its next write at the latest, which may take a moment. */
const OVER_AFTER_MS = 3_000;

export class Stall {
  readonly #resume: () => Promise<void>;
  readonly #changed: () => void;
  readonly #log: Log;
  #reason: Reason | null = null;
  #timer: NodeJS.Timeout | undefined;

  /** `resume` lets the guest go on; `changed` is called whenever the reason has changed. */
  constructor(options: { resume: () => Promise<void>; changed: () => void; log: Log }) {
    this.#resume = options.resume;
    this.#changed = options.changed;
    this.#log = options.log;
  }

  /** null: the guest goes on. */
  get reason(): Reason | null {
    return this.#reason;
  }

  /** Of each request that failed and stopped the guest; there may be several at once. */
  hear(failed: QmpEventData['BLOCK_IO_ERROR']): void {
    this.#become(reasonOf(failed));
    this.#in(RETRY_MS, () => void this.#retry());
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  async #retry(): Promise<void> {
    // Before it goes on: a request that fails again is heard while this waits.
    this.#in(OVER_AFTER_MS, () => this.#become(null));
    try {
      await this.#resume();
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'the VM does not go on');
      this.#in(RETRY_MS, () => void this.#retry());
    }
  }

  #in(ms: number, act: () => void): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
  }

  #become(reason: Reason | null): void {
    const before = this.#reason;
    this.#reason = reason;
    if (before?.code !== reason?.code) this.#changed();
  }
}

function reasonOf({ nospace, operation, reason }: QmpEventData['BLOCK_IO_ERROR']): Reason {
  const waits = 'The VM waits, and goes on by itself.';
  return nospace
    ? { code: 'disk_full', message: `The host has no room for what the guest writes. ${waits}` }
    : {
        code: 'disk_error',
        message: `The host could not ${operation === 'read' ? 'read' : 'write'} the disk: ${untrustedText(reason)}. ${waits}`,
      };
}
