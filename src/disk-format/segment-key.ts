/** The names of segments in the object store: `<prefix>/seg/<epoch>/<generation>-<attempt>-<part>`. */
import { assert } from '../shared/assert.ts';
import { SegmentCorruptError, type SegmentIdentity } from './segment-format.ts';

const KEY = /\/seg\/(\d{1,16})\/(\d{1,16})-([0-9a-f]{8})-(\d{1,10})$/;

type Named = Pick<SegmentIdentity, 'epoch' | 'generation' | 'attempt' | 'part'>;

/** `attempt` (random u32) is 8 hex digits, so that objects of a killed attempt never collide with later ones. */
export function segmentKey(prefix: string, { epoch, generation, attempt, part }: Named): string {
  assert(Number.isInteger(attempt) && attempt >= 0 && attempt < 2 ** 32, 'an attempt is a u32');
  return `${prefix}/seg/${epoch}/${generation}-${attempt.toString(16).padStart(8, '0')}-${part}`;
}

/**
 * Verifies that a segment's trailer agrees with its key, which detects swapped objects. Ignores keys of another form.
 * @throws SegmentCorruptError
 */
export function verifyKey(key: string, identity: SegmentIdentity): void {
  const match = KEY.exec(key);
  if (!match) return;
  const [, epoch, generation, attempt, part] = match;
  const said = segmentKey('', identity);
  if (said !== `/seg/${epoch}/${generation}-${attempt}-${part}`) {
    throw new SegmentCorruptError(key, `holds another segment (${said.slice(1)})`);
  }
}
