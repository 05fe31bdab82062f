/** Suggests a known word for a mistyped one. */

/** Longer words are cut. */
const MAX_LENGTH = 64;

/** The known word that was probably meant, if one is near enough. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const meant = known
    .map((candidate) => ({ candidate, edits: distance(word.slice(0, MAX_LENGTH), candidate) }))
    .filter(({ candidate, edits }) => edits <= mostEdits(candidate.length));
  return meant.sort((a, b) => a.edits - b.edits)[0]?.candidate;
}

/** Few letters have many neighbours: `vm` is not a mistyped `rm`, nor `nope` a mistyped `copy`. */
function mostEdits(length: number): number {
  if (length < 3) return 0;
  return length < 5 ? 1 : Math.max(2, Math.floor(length / 3));
}

/** Edits (insert, delete, replace, swap two neighbours) from one text to the other. */
function distance(from: string, to: string): number {
  let before: number[] = [];
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let i = 1; i <= from.length; i++) {
    const next = [i];
    for (let j = 1; j <= to.length; j++) {
      const replaced = (row[j - 1] ?? 0) + (from[i - 1] === to[j - 1] ? 0 : 1);
      const swaps = i > 1 && j > 1 && from[i - 1] === to[j - 2] && from[i - 2] === to[j - 1];
      const swapped = swaps ? (before[j - 2] ?? 0) + 1 : replaced;
      next.push(Math.min(replaced, swapped, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    before = row;
    row = next;
  }
  return row[to.length] ?? 0;
}
