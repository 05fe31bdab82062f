/** In JSON. */
const VALUE_MAX_CHARACTERS = 2_000;

/**
 * An entry's data, with the length in place of each value that is too long: entries are kept for good. Of an object, such as the
 * fields that were changed, each value is judged apart.
 */
export function shortened(data: Record<string, unknown>): Record<string, unknown> {
  return mapped(data, (value) =>
    isObject(value) && isLong(value) ? mapped(value, lengthIfLong) : lengthIfLong(value),
  );
}

function lengthIfLong(value: unknown): unknown {
  return isLong(value) ? `(${JSON.stringify(value).length} characters)` : value;
}

function isLong(value: unknown): boolean {
  return (JSON.stringify(value)?.length ?? 0) > VALUE_MAX_CHARACTERS;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function mapped(data: Record<string, unknown>, change: (value: unknown) => unknown): Record<string, unknown> {
  return Object.fromEntries(Object.entries(data).map(([key, value]) => [key, change(value)]));
}
