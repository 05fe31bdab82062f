/** RFC 3339, UTC, milliseconds. */
export function rfc3339(time: Date): string {
  return time.toISOString();
}

/** A time as callers write it: RFC 3339, section 5.6. */
const FORM = /^(\d{4})-(\d{2})-(\d{2})T(\d{2}):\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$/i;

/** The time, to the millisecond. null: no valid time, also a day that its month does not have. */
export function parseTime(text: string): Date | null {
  const [year = 0, month = 0, day = 0, hour = 0] = (FORM.exec(text) ?? []).slice(1, 5).map(Number);
  // Date reads 30 February as 2 March, and 24:00 as the next day.
  const days = new Date(Date.UTC(year, month, 0)).getUTCDate();
  if (month === 0 || day > days || hour > 23) return null;
  const time = new Date(text.toUpperCase());
  return Number.isNaN(time.getTime()) ? null : time;
}
