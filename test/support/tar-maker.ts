/** Writes tar archives in which the test chooses every field, for hostile archives. */
export interface MadeEntry {
  readonly path: string;
  readonly type?: string;
  readonly target?: string;
  readonly content?: string | Buffer;
  readonly mode?: number;
  readonly uid?: number;
  readonly gid?: number;
  /** The size in the header, even if the content has another. */
  readonly size?: number;
}

const BLOCK = 512;

function octal(value: number, length: number): string {
  return `${value.toString(8).padStart(length - 1, '0')}\0`;
}

export function tarEntry(entry: MadeEntry): Buffer {
  const content = Buffer.from(entry.content ?? '');
  const header = Buffer.alloc(BLOCK);
  const put = (at: number, text: string) => header.write(text, at, 'utf8');
  put(0, entry.path.slice(0, 100));
  put(100, octal(entry.mode ?? (entry.type === '5' ? 0o755 : 0o644), 8));
  put(108, octal(entry.uid ?? 0, 8));
  put(116, octal(entry.gid ?? 0, 8));
  put(124, octal(entry.size ?? content.length, 12));
  put(136, octal(1_700_000_000, 12));
  put(148, ' '.repeat(8));
  put(156, entry.type ?? '0');
  put(157, (entry.target ?? '').slice(0, 100));
  put(257, 'ustar\x0000');
  put(
    148,
    `${header
      .reduce((sum, byte) => sum + byte, 0)
      .toString(8)
      .padStart(6, '0')}\0 `,
  );
  return Buffer.concat([header, content, Buffer.alloc((BLOCK - (content.length % BLOCK)) % BLOCK)]);
}

/** A pax header for the next entry. */
export function paxEntry(records: Readonly<Record<string, string>>): Buffer {
  const lines = Object.entries(records).map(([key, value]) => {
    const rest = Buffer.byteLength(` ${key}=${value}\n`);
    let length = rest + 1;
    while (rest + String(length).length !== length) length += 1;
    return `${length} ${key}=${value}\n`;
  });
  return tarEntry({ path: 'pax', type: 'x', content: lines.join('') });
}

export function tarOf(...entries: readonly (MadeEntry | Buffer)[]): Buffer {
  const parts = entries.map((each) => (Buffer.isBuffer(each) ? each : tarEntry(each)));
  return Buffer.concat([...parts, Buffer.alloc(2 * BLOCK)]);
}
