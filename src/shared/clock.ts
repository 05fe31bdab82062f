/** RFC 3339, UTC, milliseconds. */
export function rfc3339(time: Date): string {
  return time.toISOString();
}
