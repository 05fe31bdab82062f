/**
 * How a guest's agent has behaved, and what follows. Pure: times are given, by performance.now's scale.
 *
 *   answers ──breaks the protocol──▶ cut off, 1 s, then 2, 4 … 60 ──answers again──▶ answers
 *      └──silent for 20 s of being asked──▶ silent ──answers──▶ answers
 *
 * `is_silent` holds in both: the guest's agent is as good as none. Breaking the protocol again within five minutes cuts off for
 * twice as long, whatever was answered between.
 */
/** Longer than a guest that is well takes to answer. */
const SILENT_MS = 20_000;
const CUT_OFF_MS = 1_000;
const MAX_CUT_OFF_MS = 60_000;
const REMEMBERED_MS = 300_000;

export class AgentConduct {
  #is_silent = false;
  /** When the first of the questions was sent that had no answer. */
  #unanswered_since: number | null = null;
  #cut_off_ms = 0;
  #cut_off_until = Number.NEGATIVE_INFINITY;

  get is_silent(): boolean {
    return this.#is_silent;
  }

  /** How long it is not to be asked; 0: it may be. */
  cutOffMs(now: number): number {
    return Math.max(0, this.#cut_off_until - now);
  }

  answered(): void {
    this.#is_silent = false;
    this.#unanswered_since = null;
  }

  /** To what was asked at `asked_at`. */
  didNotAnswer(asked_at: number, now: number): void {
    this.#unanswered_since ??= asked_at;
    if (now - this.#unanswered_since >= SILENT_MS) this.#is_silent = true;
  }

  brokeProtocol(now: number): void {
    const again = now - this.#cut_off_until < REMEMBERED_MS;
    this.#cut_off_ms = again ? Math.min(MAX_CUT_OFF_MS, this.#cut_off_ms * 2) : CUT_OFF_MS;
    this.#cut_off_until = now + this.#cut_off_ms;
    this.#is_silent = true;
  }

  /** The guest begins anew, or stood still for a reason that is not its own. */
  forgive(): void {
    this.answered();
    this.#cut_off_until = Number.NEGATIVE_INFINITY;
  }
}
