/**
 * Sanitises untrusted text (from a guest, its QEMU or another program) for messages, logs, the database and terminals.
 * No other file decides which characters are removed. Pure.
 */
const MAX_CHARACTERS = 300;
/** Only so much is read. The rest could show in the result only if the beginning is nearly all removed. */
const MAX_READ = 4_096;

/** Complete terminal sequences: colours, cursor movement, titles, device strings. */
const SEQUENCES =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are removed
  /(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]|(?:\u001b[\]PX^_]|[\u0090\u0098\u009d-\u009f])[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c)|\u001b[ -/]*[0-~]/g;
/** Control characters but tab and newline. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are removed
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
/** Invisible characters that change the visible ones: writing direction, joiners, marks, tags. */
const INVISIBLE = /\p{Cf}/gu;

/** Removes what a terminal acts on, and characters that reorder or hide others. Keeps tabs and newlines. */
export function withoutControls(text: string): string {
  return text.replace(SEQUENCES, '').replace(CONTROLS, '').replace(INVISIBLE, '');
}

/** One line of at most 300 characters, ending in `…` if it was longer. A value that is no string becomes empty. */
export function untrustedText(text: unknown): string {
  if (typeof text !== 'string') return '';
  const read = text.slice(0, MAX_READ).replace(SEQUENCES, '');
  // A newline separates words: it becomes a space. What is removed between two spaces leaves one.
  const line = withoutControls(read.replace(/[\s\u0085]/g, ' '))
    .replace(/ +/g, ' ')
    .trim()
    .toWellFormed();
  const characters = [...line];
  if (characters.length <= MAX_CHARACTERS && text.length <= MAX_READ) return line;
  return `${characters.slice(0, MAX_CHARACTERS - 1).join('')}…`;
}
