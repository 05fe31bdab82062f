/**
 * A guest that QEMU has paused because a disk request failed on this host (`werror=stop`, `rerror=stop`). QEMU keeps the request.
 * It is retried every second, and the guest never sees an error.
 *
 *   running ──BLOCK_IO_ERROR──▶ stalled ──cont, and no failure for some seconds──▶ running
 */
import type { Reason } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import type { QmpEventData } from '../qemu/qmp-types.ts';

const RETRY_MS = 1_000;
/** A resumed guest meets a full disk again at its next write, which may take a moment. */
const OVER_AFTER_MS = 3_000;

export class Stall {
  readonly #resume: () => Promise<void>;
  readonly #changed: () => void;
  readonly #log: Log;
  #reason: Reason | null = null;
  #timer: NodeJS.Timeout | undefined;

  /** `resume` continues the guest; `changed` is called when the reason changes. */
  constructor(options: { resume: () => Promise<void>; changed: () => void; log: Log }) {
    this.#resume = options.resume;
    this.#changed = options.changed;
    this.#log = options.log;
  }

  /** null: the guest is not stalled. */
  get reason(): Reason | null {
    return this.#reason;
  }

  /** A request failed and paused the guest. Several may fail at once. */
  began(failed: QmpEventData['BLOCK_IO_ERROR']): void {
    this.#become(reasonOf(failed));
    this.#in(RETRY_MS, () => void this.#retry());
  }

  close(): void {
    clearTimeout(this.#timer);
  }

  async #retry(): Promise<void> {
    // Set before the resume: a request that fails again replaces this timer.
    this.#in(OVER_AFTER_MS, () => this.#become(null));
    try {
      await this.#resume();
    } catch (error) {
      this.#log.warn({ reason: messageOf(error) }, 'the VM could not be resumed');
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
