/**
 * When the automatic flush is due: its interval has passed, and something is dirty.
 *
 * The thaw after a flush writes the file system's superblock, so an idle guest always has one dirty block. A real write dirties
 * more than one (data, inode, journal); a single dirty block waits ten intervals.
 */
import { BLOCK_BYTES } from '../../disk-format/segment-format.ts';

const LONE_BLOCK_INTERVALS = 10;
const HURRY_AGAIN_MS = 30_000;

export class AutoFlush {
  readonly #due: () => void;
  #interval_s: number | null = null;
  #timer: NodeJS.Timeout | undefined;
  /** Whole intervals since the last flush began. */
  #elapsed = 0;
  #dirty_bytes = 0;
  #hurry: NodeJS.Timeout | undefined;
  #hurried = false;
  /** Whether the last flush was a hurried one. */
  #was_hurried = false;

  /** `due` is called when {@link due} becomes true. */
  constructor(due: () => void) {
    this.#due = due;
  }

  get due(): boolean {
    if (this.#hurried) return true;
    if (this.#dirty_bytes === 0) return false;
    return this.#elapsed >= (this.#dirty_bytes > BLOCK_BYTES ? 1 : LONE_BLOCK_INTERVALS);
  }

  /** Makes a flush due in `ms`, whatever the interval, even if it is off. */
  hurry(ms: number): void {
    clearTimeout(this.#hurry);
    this.#hurry = setTimeout(() => {
      this.#hurried = true;
      this.#due();
    }, ms);
  }

  /** null turns it off. */
  configure(interval_s: number | null): void {
    if (interval_s === this.#interval_s) return;
    this.#interval_s = interval_s;
    this.#restart();
  }

  /** A flush of any kind begins. */
  began(): void {
    this.#was_hurried = this.#hurry !== undefined;
    this.#dirty_bytes = 0;
    this.#hurried = false;
    clearTimeout(this.#hurry);
    this.#hurry = undefined;
    this.#restart();
  }

  /** The flush has ended. A hurried flush that failed is due again soon. */
  ended(saved: boolean): void {
    if (this.#was_hurried && !saved) this.hurry(HURRY_AGAIN_MS);
  }

  /** Takes the bitmap's count; null: unknown. */
  observe(dirty_bytes: number | null): void {
    const was = this.due;
    if (dirty_bytes !== null) this.#dirty_bytes = dirty_bytes;
    if (this.due && !was) this.#due();
  }

  close(): void {
    clearInterval(this.#timer);
    clearTimeout(this.#hurry);
  }

  #restart(): void {
    clearInterval(this.#timer);
    this.#elapsed = 0;
    if (this.#interval_s === null) return;
    this.#timer = setInterval(() => {
      const was = this.due;
      this.#elapsed += 1;
      if (this.due && !was) this.#due();
    }, this.#interval_s * 1000);
  }
}
