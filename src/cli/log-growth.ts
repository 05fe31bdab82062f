/** What a log that is read by its end, again and again, has more than at the time before. */

/**
 * @param before its end as it was read last; @param now as it is read now, perhaps cut off further on
 * @returns what came after `before`; all of `now` where nothing of that is left in it. Where a log repeats itself the
 * longest overlap counts.
 */
export function grown(before: string, now: string): string {
  if (now.startsWith(before)) return now.slice(before.length);
  // The cut may lie within a character: whole lines are compared.
  const whole_lines = now.slice(now.indexOf('\n') + 1);
  const first_line = whole_lines.slice(0, whole_lines.indexOf('\n') + 1);
  if (first_line === '') return now;
  for (let at = before.indexOf(first_line); at !== -1; at = before.indexOf(first_line, at + 1)) {
    if (whole_lines.startsWith(before.slice(at))) return whole_lines.slice(before.length - at);
  }
  return now;
}
