/**
 * Text that a guest, its QEMU or another stranger wrote, made fit for messages, logs, the database and terminals. The one
 * place that decides what is taken out. Pure.
 */
const MAX_CHARACTERS = 300;
/** What is looked at: whatever is behind it cannot be seen in the result but for a sender who wastes its room. */
const MAX_READ = 4_096;

/** A terminal's commands, whole: colours, moves of the cursor, titles, strings for the terminal itself. */
const SEQUENCES =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is taken out
  /(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]|(?:\u001b[\]PX^_]|[\u0090\u0098\u009d-\u009f])[^\u0007\u001b\u009c]*(?:\u0007|\u001b\\|\u009c)|\u001b[ -/]*[0-~]/g;
/** Control characters but tab and newline. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is taken out
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;
/** Those that are not seen and change what is: of writing direction, joiners, marks, tags. */
const INVISIBLE = /\p{Cf}/gu;

/** Without what a terminal acts on, and without characters that reorder or hide others. Tabs and newlines stay. */
export function withoutControls(text: string): string {
  return text.replace(SEQUENCES, '').replace(CONTROLS, '').replace(INVISIBLE, '');
}

/** One line of at most 300 characters, `…` at its end where it was longer. Anything but a string is no text. */
export function untrustedText(text: unknown): string {
  if (typeof text !== 'string') return '';
  const read = text.slice(0, MAX_READ).replace(SEQUENCES, '');
  // A line's end becomes a space: it separates words.
  const line = withoutControls(read.replace(/[\s\u0085]+/g, ' '))
    .trim()
    .toWellFormed();
  const characters = [...line];
  if (characters.length <= MAX_CHARACTERS && text.length <= MAX_READ) return line;
  return `${characters.slice(0, MAX_CHARACTERS - 1).join('')}…`;
}
