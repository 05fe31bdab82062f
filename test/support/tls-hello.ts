/** Makes TLS ClientHellos, as bytes. */

export function number(width: number, value: number): Buffer {
  const bytes = Buffer.alloc(width);
  bytes.writeUIntBE(value, 0, width);
  return bytes;
}

export function extension(type: number, content: Buffer): Buffer {
  return Buffer.concat([number(2, type), number(2, content.length), content]);
}

export function serverName(...names: string[]): Buffer {
  const list = Buffer.concat(
    names.map((name) => Buffer.concat([number(1, 0), number(2, name.length), Buffer.from(name, 'latin1')])),
  );
  return extension(0, Buffer.concat([number(2, list.length), list]));
}

/** The handshake message. `more` stands behind the extensions, where nothing may stand. */
export function hello(extensions: readonly Buffer[], more: Buffer = Buffer.alloc(0)): Buffer {
  const all = Buffer.concat(extensions);
  const body = Buffer.concat([
    ...[
      number(2, 0x0303),
      Buffer.alloc(32, 7),
      number(1, 0),
      number(2, 2),
      number(2, 0x1301),
      number(2, 0x0100),
    ],
    ...[number(2, all.length), all, more],
  ]);
  return Buffer.concat([number(1, 1), number(3, body.length), body]);
}

/** In records of `size` bytes. */
export function inRecords(message: Buffer, size = 16_384): Buffer {
  const records: Buffer[] = [];
  for (let at = 0; at < message.length; at += size) {
    const part = message.subarray(at, at + size);
    records.push(Buffer.from([22, 3, 1]), number(2, part.length), part);
  }
  return Buffer.concat(records);
}

export function helloFor(name: string): Buffer {
  return inRecords(hello([serverName(name)]));
}
