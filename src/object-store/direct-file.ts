/**
 * Writes files with O_DIRECT (open(2)), past the page cache. Segments are rarely read soon. In the cache they would evict
 * pages that guests read, and would cost half a core-second for 512 MiB.
 */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { errnoOf } from '../shared/errors.ts';
import { release } from '../shared/release.ts';

/** The alignment that O_DIRECT needs for addresses, offsets and lengths on common disks. */
const ALIGNMENT_BYTES = 4_096;
const STAGE_BYTES = 1024 * 1024;
/** As many as a flush writes at once. Further buffers are released after use. */
const STAGES_KEPT = 4;
const stages: Uint8Array[] = [];

/** Page-aligned: V8 allocates resizable buffers in whole pages. */
function newStage(): Uint8Array {
  return new Uint8Array(new ArrayBuffer(STAGE_BYTES, { maxByteLength: STAGE_BYTES }));
}

/**
 * Writes and fsyncs a file, over an existing one. Returns false when the file system does not support it; the file's
 * content is then undefined.
 */
export async function writePastCache(
  path: string,
  body: readonly Uint8Array[],
  signal?: AbortSignal,
): Promise<boolean> {
  const { O_WRONLY, O_CREAT, O_TRUNC, O_DIRECT } = constants;
  const stage = stages.pop() ?? newStage();
  try {
    await using file = await open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0o600);
    await writeStaged(file, body, stage, signal);
    await file.sync();
    signal?.throwIfAborted();
    return true;
  } catch (error) {
    if (errnoOf(error) === 'EINVAL') return false;
    throw error;
  } finally {
    if (stages.length < STAGES_KEPT) stages.push(stage);
    else release(stage);
  }
}

async function writeStaged(
  file: FileHandle,
  body: readonly Uint8Array[],
  stage: Uint8Array,
  signal: AbortSignal | undefined,
): Promise<void> {
  let written = 0;
  let staged = 0;
  const write = async (bytes: number): Promise<void> => {
    signal?.throwIfAborted();
    for (let done = 0; done < bytes; ) {
      const { bytesWritten } = await file.write(stage, done, bytes - done, written + done);
      done += bytesWritten;
    }
    written += bytes;
    staged = 0;
  };
  for (const part of body) {
    for (let at = 0; at < part.length; ) {
      const taken = part.subarray(at, at + STAGE_BYTES - staged);
      stage.set(taken, staged);
      at += taken.length;
      staged += taken.length;
      if (staged === STAGE_BYTES) await write(STAGE_BYTES);
    }
  }
  if (staged === 0) return;
  const size_bytes = written + staged;
  const whole = Math.ceil(staged / ALIGNMENT_BYTES) * ALIGNMENT_BYTES;
  stage.fill(0, staged, whole);
  await write(whole);
  await file.truncate(size_bytes);
}
