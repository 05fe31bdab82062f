/** What `berth doctor` is told on the server, where the host's token can be read. */
export interface Weakness {
  readonly check: string;
  readonly found: string;
  /** What to set, or to type. */
  readonly next: string;
}

export interface WeaknessesResponse {
  /** The origins that the server is reached at: it may be another one that doctor was asked about. */
  readonly origins: readonly string[];
  readonly weaknesses: readonly Weakness[];
}
