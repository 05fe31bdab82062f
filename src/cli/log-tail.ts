/** Finds the new part of a log whose end is read repeatedly. */

/**
 * @param before the end as last read; @param now the end as read now, which may start later
 * @returns the part of `now` after `before`; all of `now` without an overlap. The longest overlap counts.
 */
export function newPart(before: string, now: string): string {
  if (now.startsWith(before)) return now.slice(before.length);
  // Either may start inside a character, so compare whole lines.
  const whole_lines = now.slice(now.indexOf('\n') + 1);
  const first_line = whole_lines.slice(0, whole_lines.indexOf('\n') + 1);
  if (first_line === '') return now;
  for (let at = before.indexOf(first_line); at !== -1; at = before.indexOf(first_line, at + 1)) {
    if (whole_lines.startsWith(before.slice(at))) return whole_lines.slice(before.length - at);
  }
  return now;
}
