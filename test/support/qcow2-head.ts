/** The header of an overlay as QEMU writes it (docs/interop/qcow2.txt in its tree), and forged ones. */
export interface HeadChange {
  /** Sets a file name, and its offset in the header. */
  readonly backing_file?: string;
  readonly features?: bigint;
  readonly version?: number;
  readonly encryption?: number;
  readonly snapshots?: number;
}

const EXTENDED_L2 = 1n << 4n;
const NAME_AT = 120;

export function qcow2Head(size_bytes: number, change: HeadChange = {}): Buffer {
  const head = Buffer.alloc(512);
  head.write('QFI\xfb', 'latin1');
  head.writeUInt32BE(change.version ?? 3, 4);
  if (change.backing_file !== undefined) {
    head.writeBigUInt64BE(BigInt(NAME_AT), 8);
    head.writeUInt32BE(head.write(change.backing_file, NAME_AT), 16);
  }
  head.writeUInt32BE(17, 20);
  head.writeBigUInt64BE(BigInt(size_bytes), 24);
  head.writeUInt32BE(change.encryption ?? 0, 32);
  head.writeUInt32BE(change.snapshots ?? 0, 60);
  head.writeBigUInt64BE(change.features ?? EXTENDED_L2, 72);
  head.writeUInt32BE(4, 96);
  head.writeUInt32BE(112, 100);
  return head;
}
