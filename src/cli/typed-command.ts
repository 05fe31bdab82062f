/** The command as it was typed, for errors that end in a command to copy. */

/** The typed command with one more option, such as `--yes`. */
export type Again = (option: string) => string;

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** In quotes where a shell would read a word differently. */
export function shellWord(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/**
 * @param own the words up to the end of Berth's own, which the option may follow
 * @param rest the words of another program, which must stay last
 */
export function typedAgain(own: readonly string[], rest: readonly string[] = []): Again {
  const quoted = (words: readonly string[]) => words.map(shellWord);
  return (option) => {
    const [name = ''] = option.split(' ', 1);
    return ['berth', ...quoted(without(name, own, option !== name)), option, ...quoted(rest)].join(' ');
  };
}

/** A wrong value of the option is replaced. */
function without(name: string, words: readonly string[], takes_value: boolean): readonly string[] {
  return words.filter((word, at) => {
    const is_value = takes_value && words[at - 1] === name;
    return word !== name && !word.startsWith(`${name}=`) && !is_value;
  });
}
