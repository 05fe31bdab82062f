/**
 * The faults of each round, chosen by a seed. Kinds are drawn like cards: each comes once before any comes again. Pure.
 */
import { seededRandom } from '../../support/seeded-random.ts';

/** `loses`: the host's lease expires. `ms`: how long it lasts at least and at most. */
interface Kind {
  readonly of: 'rack' | 'control' | 'front' | 'leader' | 'store';
  readonly how: string;
  readonly loses?: true;
  readonly ms: readonly [number, number];
}

const SHORT: Kind['ms'] = [1_000, 5_000];
const LONG: Kind['ms'] = [5_000, 20_000];
/** A fault that ends when what it has killed runs again, or when all instances of a lost host run elsewhere. */
const AT_ONCE: Kind['ms'] = [500, 2_000];

export const KINDS = [
  { of: 'rack', how: 'power', loses: true, ms: AT_ONCE },
  { of: 'leader', how: 'kill', ms: LONG },
  { of: 'rack', how: 'new disk', ms: SHORT },
  { of: 'leader', how: 'restore', ms: LONG },
  { of: 'store', how: 'wrong', ms: LONG },
  { of: 'rack', how: 'cut', loses: true, ms: AT_ONCE },
  { of: 'store', how: 'cut', ms: LONG },
  { of: 'rack', how: 'pause', loses: true, ms: AT_ONCE },
  { of: 'control', how: 'kill', ms: SHORT },
  { of: 'rack', how: 'mute', loses: true, ms: AT_ONCE },
  { of: 'rack', how: 'deaf', loses: true, ms: AT_ONCE },
  { of: 'rack', how: 'cut shortly', ms: SHORT },
  { of: 'rack', how: 'slow', ms: LONG },
  { of: 'rack', how: 'lossy', ms: LONG },
  { of: 'rack', how: 'cut from control-1', ms: LONG },
  { of: 'rack', how: 'cut from the store', ms: LONG },
  { of: 'rack', how: 'kill', ms: SHORT },
  { of: 'rack', how: 'kill fencer', ms: SHORT },
  { of: 'rack', how: 'kill VM', ms: SHORT },
  { of: 'rack', how: 'clock', ms: LONG },
  { of: 'control', how: 'pause', ms: LONG },
  { of: 'control', how: 'cut', ms: LONG },
  { of: 'control', how: 'cut from PostgreSQL', ms: LONG },
  { of: 'control', how: 'mute', ms: LONG },
  { of: 'control', how: 'slow', ms: LONG },
  { of: 'control', how: 'lossy', ms: LONG },
  { of: 'control', how: 'clock', ms: LONG },
  { of: 'front', how: 'kill', ms: SHORT },
  { of: 'front', how: 'cut', ms: LONG },
  { of: 'leader', how: 'pause', ms: LONG },
  { of: 'leader', how: 'cut', ms: LONG },
  { of: 'store', how: 'pause', ms: LONG },
  { of: 'store', how: 'slow', ms: LONG },
  { of: 'store', how: 'lossy', ms: LONG },
] as const satisfies readonly Kind[];

export interface Fault {
  readonly of: Kind['of'];
  /** Which of them, from 1. */
  readonly number: number;
  readonly how: (typeof KINDS)[number]['how'];
  readonly loses: boolean;
  readonly ms: number;
  /** Of a clock: by how much it jumps. */
  readonly jump_s: number;
}

export interface Round {
  /** Before the first fault. */
  readonly wait_ms: number;
  /** At the same time. */
  readonly faults: readonly Fault[];
}

const COUNTS: Record<Kind['of'], number> = { rack: 3, control: 2, front: 2, leader: 1, store: 1 };
/** Of the rounds with two faults. */
const DOUBLE = 0.3;
const JUMPS_S = [-3_600, -60, 60, 3_600] as const;

export function nameOf({ of, number, how, ms }: Fault): string {
  return `${COUNTS[of] === 1 ? of : `${of}-${number}`} ${how} (${(ms / 1_000).toFixed(1)} s)`;
}

/** A lost host stays alone, so that the time until its instances run elsewhere is that of the promise; a restore takes all nodes. */
function isAlone({ loses, how }: Fault): boolean {
  return loses || how === 'restore';
}

/** Endless. `clocks`: whether clocks can jump here. */
export function* schedule(seed: number, clocks: boolean): Generator<Round, never> {
  const random = seededRandom(seed);
  const below = (count: number) => Math.floor(random() * count);
  const kinds: readonly Kind[] = KINDS.filter(({ how }) => clocks || how !== 'clock');
  let cards: Kind[] = [];
  const draw = (): Fault => {
    if (cards.length === 0) cards = [...kinds];
    const [kind] = cards.splice(below(cards.length), 1);
    if (!kind) throw new Error('there is a kind');
    const { of, how, ms, loses = false } = kind;
    const [least, most] = ms;
    return {
      ...{ of, number: 1 + below(COUNTS[of]), how: how as Fault['how'], loses },
      ...{ ms: least + below(most - least), jump_s: JUMPS_S[below(JUMPS_S.length)] ?? 0 },
    };
  };
  for (;;) {
    const wait_ms = below(3_000);
    const first = draw();
    const second = random() < DOUBLE && !isAlone(first) ? draw() : undefined;
    yield { wait_ms, faults: second && !isAlone(second) ? [first, second] : [first] };
  }
}
