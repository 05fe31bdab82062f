/**
 * Paths of a guest as text: bytes, percent-encoded (RFC 3986). Any byte but NUL may be in a path. What is written by
 * {@link encodePath} is the same in a query, in JSON and in a terminal.
 */

/** Null: a `%` without two hexadecimal digits. Other characters stand for themselves, in UTF-8. */
export function decodePath(text: string): Buffer | null {
  if (/%(?![0-9A-Fa-f]{2})/.test(text)) return null;
  const parts = text.split(/(%[0-9A-Fa-f]{2})/);
  return Buffer.concat(
    parts.map((part, index) =>
      index % 2 === 1 ? Buffer.of(Number.parseInt(part.slice(1), 16)) : Buffer.from(part, 'utf8'),
    ),
  );
}

/** Everything but unreserved characters and `/` is encoded. */
export function encodePath(bytes: Uint8Array): string {
  return Buffer.from(bytes)
    .toString('latin1')
    .replace(
      /[^A-Za-z0-9._~/-]/g,
      (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, '0')}`,
    );
}
