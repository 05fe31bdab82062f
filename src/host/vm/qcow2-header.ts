/**
 * The header of a qcow2 file (docs/interop/qcow2.txt in QEMU's tree; numbers are big-endian): what must be known of a file that
 * somebody else could write before a program of QEMU's opens it, which follows the names of files that a header has.
 */

export const QCOW2_HEADER_BYTES = 112;
const MAGIC = 'QFI\xfb';
const FEATURES = { dirty: 1n << 0n, corrupt: 1n << 1n, data_file: 1n << 2n, extended_l2: 1n << 4n } as const;
/** What overlays are made with, and what QEMU sets while it writes one. */
const OVERLAY_FEATURES = FEATURES.dirty | FEATURES.extended_l2;

export interface Qcow2Header {
  readonly version: number;
  /** Of the disk that it holds. */
  readonly size_bytes: number;
  readonly has_backing_file: boolean;
  readonly has_data_file: boolean;
  readonly is_encrypted: boolean;
  readonly snapshots: number;
  readonly features: bigint;
}

/** Null: it has no such header. */
export function parseQcow2Header(head: Buffer): Qcow2Header | null {
  if (head.length < 72 || head.toString('latin1', 0, 4) !== MAGIC) return null;
  const version = head.readUInt32BE(4);
  // Version 2 has no features.
  if (version >= 3 && head.length < 104) return null;
  const features = version >= 3 ? head.readBigUInt64BE(72) : 0n;
  return {
    version,
    size_bytes: Number(head.readBigUInt64BE(24)),
    has_backing_file: head.readBigUInt64BE(8) !== 0n,
    has_data_file: (features & FEATURES.data_file) !== 0n,
    is_encrypted: head.readUInt32BE(32) !== 0,
    snapshots: head.readUInt32BE(60),
    features,
  };
}

/** What an overlay's header has that no QEMU of ours writes there; null: nothing. */
export function overlayProblem(header: Qcow2Header | null): string | null {
  if (!header) return 'it has no qcow2 header';
  const { version, size_bytes, features } = header;
  if (header.has_backing_file) return 'it names a backing file';
  if (header.has_data_file) return 'it names a data file';
  if (header.is_encrypted) return 'it says that it is encrypted';
  if (header.snapshots > 0) return 'it has snapshots';
  if (version !== 3) return `it is of version ${version}`;
  if ((features & FEATURES.corrupt) !== 0n) return 'QEMU has marked it as damaged';
  if ((features & ~OVERLAY_FEATURES) !== 0n) return 'it has features that no overlay has';
  if (size_bytes === 0 || size_bytes % 512 !== 0 || !Number.isSafeInteger(size_bytes))
    return 'its size is none of a disk';
  return null;
}
