/** The parts of a receiver's answer that are kept. Pure. */

/** Of the body, in bytes of UTF-8. */
export const KEPT_BYTES = 4096;
/** Of the headers, in bytes of UTF-8. */
export const KEPT_HEADER_BYTES = 2048;
/** The most that `Retry-After` may ask for. */
export const MAX_RETRY_AFTER_SECONDS = 7 * 24 * 3600;

/** The body as text for a database and a page: valid UTF-8, no control characters but tab and newline, at most 4 KiB. */
export function printable(chunks: readonly Uint8Array[]): string {
  if (chunks.length === 0) return '';
  // `stream` leaves out a character that is cut in two at the end; invalid bytes become U+FFFD.
  const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(
    Buffer.concat(chunks).subarray(0, KEPT_BYTES),
    { stream: true },
  );
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it replaces them
  const clean = text.replace(/\r\n?/g, '\n').replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '\ufffd');
  // U+FFFD takes three bytes for each that it replaces.
  const bytes = Buffer.from(clean);
  if (bytes.length <= KEPT_BYTES) return clean;
  return new TextDecoder('utf-8').decode(bytes.subarray(0, KEPT_BYTES), { stream: true });
}

/** The first headers, up to 2 KiB, without control characters. A cookie is a credential of the receiver: it is left out. */
export function keptHeaders(
  headers: Readonly<Record<string, string | string[] | undefined>>,
): Record<string, string> {
  const kept: [string, string][] = [];
  let bytes = 0;
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || name === 'set-cookie') continue;
    const text = (Array.isArray(value) ? value.join(', ') : value)
      // biome-ignore lint/suspicious/noControlCharactersInRegex: it replaces them
      .replace(/[\u0000-\u001f\u007f-\u009f]/g, '\ufffd')
      .toWellFormed();
    bytes += Buffer.byteLength(name) + Buffer.byteLength(text);
    if (bytes > KEPT_HEADER_BYTES) break;
    kept.push([name, text]);
  }
  return Object.fromEntries(kept);
}

/** Seconds or an HTTP date (RFC 9110); null for anything else. */
export function retryAfterSeconds(header: string | string[] | undefined, now_ms: number): number | null {
  const text = (Array.isArray(header) ? header[0] : header)?.trim() ?? '';
  const seconds = /^[0-9]{1,10}$/.test(text)
    ? Number(text)
    : / GMT$/.test(text)
      ? Math.ceil((Date.parse(text) - now_ms) / 1000)
      : Number.NaN;
  return Number.isNaN(seconds) ? null : Math.min(Math.max(seconds, 0), MAX_RETRY_AFTER_SECONDS);
}
