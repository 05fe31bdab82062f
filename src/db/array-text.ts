/** Elements that need no quotes in an array literal: ids, numbers, times. */
const PLAIN = /^[\w.:+-]+(?: [\w.:+-]+)*$/;

/**
 * An array literal, for a parameter that the statement casts. The driver makes one too, but quotes every element, which
 * takes both sides twice as long for hundreds of ids.
 * https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
 */
export function arrayText(values: readonly (string | number | null)[]): string {
  return `{${values.map(elementText).join(',')}}`;
}

function elementText(value: string | number | null): string {
  if (value === null) return 'NULL';
  if (typeof value === 'number') return String(value);
  if (value === '') return '""';
  const plain = PLAIN.test(value) && value.toLowerCase() !== 'null';
  return plain ? value : `"${value.replace(/["\\]/g, '\\$&')}"`;
}
