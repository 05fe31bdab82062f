/**
 * The conduct of a guest's agent, and its consequences. Pure: the caller passes times, on performance.now's scale.
 *
 *   answers ──breaks the protocol──▶ cut off for 1 s, then 2, 4 … 60 ──answers──▶ answers
 *      └──does not answer for 20 s──▶ silent ──answers──▶ answers
 *
 * `is_silent` holds in both states. Breaking the protocol again within five minutes doubles the time of the cut-off, also after
 * answers in between.
 */
/** Longer than a healthy guest takes to answer. */
const SILENT_MS = 20_000;
const CUT_OFF_MS = 1_000;
const MAX_CUT_OFF_MS = 60_000;
const REMEMBERED_MS = 300_000;

export class AgentConduct {
  #is_silent = false;
  /** When the first unanswered call was sent. */
  #unanswered_since: number | null = null;
  #cut_off_ms = 0;
  #cut_off_until = Number.NEGATIVE_INFINITY;

  get is_silent(): boolean {
    return this.#is_silent;
  }

  /** The remaining time of the cut-off; 0: the agent may be called. */
  cutOffMs(now: number): number {
    return Math.max(0, this.#cut_off_until - now);
  }

  answered(): void {
    this.#is_silent = false;
    this.#unanswered_since = null;
  }

  /** A call that was sent at `asked_at` has timed out. */
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

  /** The guest was reset, or was paused by its host. */
  forgive(): void {
    this.answered();
    this.#cut_off_until = Number.NEGATIVE_INFINITY;
  }
}
