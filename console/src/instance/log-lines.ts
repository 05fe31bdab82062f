/**
 * Parses a console log into lines with times, removes terminal control sequences, and marks the matches of a search.
 * Pure.
 */

export interface LogLine {
  /** RFC 3339; null: not known. */
  readonly time: string | null;
  readonly text: string;
}

const ESC = '\u001b';
const BELL = '\u0007';
/** Terminal control (ECMA-48, sections 5.3 to 5.6; XTerm's strings that a bell ends). */
const SEQUENCE = new RegExp(
  `${ESC}(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^${BELL}${ESC}]*(?:${BELL}|${ESC}\\\\)|[ -/]*[0-~])`,
  'g',
);
/** Control characters other than tab. */
const CONTROL = /(?!\t)\p{Cc}/gu;

/** @param log as `timestamps=true` returns it */
export function linesOf(log: string): LogLine[] {
  const lines = log.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.map((line) => {
    const at = line.indexOf(' ');
    const time = line.slice(0, at);
    return { time: time === '-' ? null : time, text: plain(line.slice(at + 1)) };
  });
}

function plain(text: string): string {
  return text.replace(SEQUENCE, '').replace(CONTROL, '');
}

export interface Part {
  readonly text: string;
  readonly found: boolean;
}

/** The text in parts, those that are `sought` marked; upper and lower case are the same. Null: it does not occur. */
export function partsOf(text: string, sought: string): Part[] | null {
  if (sought === '') return [{ text, found: false }];
  const [low, low_sought] = [text.toLowerCase(), sought.toLowerCase()];
  // Some characters change their length with their case; then the line is shown without marks.
  if (low.length !== text.length) return low.includes(low_sought) ? [{ text, found: false }] : null;
  const parts: Part[] = [];
  let from = 0;
  for (let at = low.indexOf(low_sought); at !== -1; at = low.indexOf(low_sought, from)) {
    if (at > from) parts.push({ text: text.slice(from, at), found: false });
    from = at + low_sought.length;
    parts.push({ text: text.slice(at, from), found: true });
  }
  if (parts.length === 0) return null;
  if (from < text.length) parts.push({ text: text.slice(from), found: false });
  return parts;
}
