/**
 * Finds the palette's commands by the words that a user types. Each typed word must begin a word of the command, or at
 * least occur in its name.
 */

export interface Findable {
  readonly name: string;
  /** Further words that find it. */
  readonly words?: string;
}

/** The commands that fit, best first; equally good ones keep their order. */
export function findCommands<C extends Findable>(commands: readonly C[], typed: string, most: number): C[] {
  const wanted = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return commands
    .map((command) => ({ command, score: scoreOf(command, wanted) }))
    .filter(({ score }) => score > 0)
    .toSorted((a, b) => b.score - a.score)
    .slice(0, most)
    .map(({ command }) => command);
}

/** 0: it does not fit. */
function scoreOf({ name, words = '' }: Findable, wanted: readonly string[]): number {
  let score = 1;
  for (const word of wanted) {
    // The further words are not seen, so a part inside them would fit without reason.
    const hidden = fit(words.toLowerCase(), word);
    const found = Math.max(3 * fit(name.toLowerCase(), word), hidden > 1 ? hidden : 0);
    if (found === 0) return 0;
    score += found;
  }
  return score;
}

/** 3: the text begins with the word; 2: one of its words does; 1: it is somewhere inside. */
function fit(text: string, word: string): number {
  if (text.startsWith(word)) return 3;
  if (text.split(/[^a-z0-9]+/).some((each) => each.startsWith(word))) return 2;
  return text.includes(word) ? 1 : 0;
}
