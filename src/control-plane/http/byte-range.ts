/**
 * Reads the headers of a request for a part of a file: `Range`, `If-Range` and ETags (RFC 9110, sections 13.1.5 and
 * 14).
 */

export interface ByteRange {
  readonly offset: number;
  readonly length: number;
}

/**
 * What `Range` asks for of `size` bytes; null: everything, because there is no such header, it is in another unit, malformed, or of
 * several ranges, which a server may ignore. `unsatisfiable`: nothing of it is there.
 */
export function rangeOf(header: string | undefined, size: number): ByteRange | null | 'unsatisfiable' {
  const [, first = '', last = ''] = /^bytes=[ \t]*(\d*)-(\d*)[ \t]*$/i.exec(header ?? '') ?? [];
  if (first === '' && last === '') return null;
  if (first === '') {
    const length = Math.min(Number(last), size);
    return length === 0 ? 'unsatisfiable' : { offset: size - length, length };
  }
  const offset = Number(first);
  const end = last === '' ? size - 1 : Math.min(Number(last), size - 1);
  if (last !== '' && Number(last) < offset) return null;
  return offset >= size ? 'unsatisfiable' : { offset, length: end - offset + 1 };
}

/** Whether `If-Range` allows the range: it has the ETag, or exactly the time of the last change. */
export function mayBePart(header: string | undefined, etag: string, modified_at: Date): boolean {
  return header === undefined || header === etag || header === modified_at.toUTCString();
}

/** Whether a header such as `If-None-Match` names the ETag. */
export function namesEtag(header: string, etag: string): boolean {
  const tags = header.split(',').map((tag) => tag.trim().replace(/^W\//, ''));
  return tags.includes('*') || tags.includes(etag);
}
