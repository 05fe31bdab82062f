/** What `berth doctor` is told on the server, where the host's token can be read. */
import { anyText, listOf, named, type Of } from './schemas.ts';

const WEAKNESSES_MAX = 1_000;
const WORDS_MAX = 1_000;

export const Weakness = named('Weakness', {
  check: anyText(WORDS_MAX),
  found: anyText(WORDS_MAX),
  /** What to set, or to type. */
  next: anyText(WORDS_MAX),
});
export type Weakness = Of<typeof Weakness>;

export const WeaknessesResponse = named('WeaknessesResponse', {
  /** The origins that the server is reached at: it may be another one that doctor was asked about. */
  origins: listOf(anyText(WORDS_MAX), 10),
  weaknesses: listOf(Weakness, WEAKNESSES_MAX),
});
export type WeaknessesResponse = Of<typeof WeaknessesResponse>;
