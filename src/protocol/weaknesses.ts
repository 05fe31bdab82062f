/** What `berth doctor` shows on the server, where it can read the host's token: weak settings, and what awaits removal. */
import { anyText, Count, listOf, named, type Of } from './schemas.ts';

const WEAKNESSES_MAX = 1_000;
const WORDS_MAX = 1_000;

export const Weakness = named('Weakness', {
  check: anyText(WORDS_MAX),
  found: anyText(WORDS_MAX),
  /** What to set or run. */
  next: anyText(WORDS_MAX),
});
export type Weakness = Of<typeof Weakness>;

export const WeaknessesResponse = named('WeaknessesResponse', {
  /** The server's origins, so that doctor notices when it was asked about another server. */
  origins: listOf(anyText(WORDS_MAX), 10),
  weaknesses: listOf(Weakness, WEAKNESSES_MAX),
  /** Of the object store: bytes that nothing needs any more, and how long they stay. */
  awaiting_removal_bytes: Count,
  removal_delay_seconds: Count,
});
export type WeaknessesResponse = Of<typeof WeaknessesResponse>;
