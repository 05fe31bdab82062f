/**
 * Files written past the system's cache of pages (O_DIRECT, open(2)). What is not read again soon would only push out of it
 * what guests read, and each of its pages is taken, filled and given back by a processor that a flush needs: half of
 * a core-second for 512 MiB, where memory has to come from the machine below.
 */
import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { errnoOf } from '../lib/errors.ts';
import { release } from '../lib/release.ts';

/** What O_DIRECT asks of addresses, offsets and lengths, on the disks there are. */
const ALIGNMENT_BYTES = 4_096;
const STAGE_BYTES = 1024 * 1024;
/** As many as a flush writes at once. What more of them take is given back by hand, as all large buffers are. */
const STAGES_KEPT = 4;
const stages: Uint8Array[] = [];

/** Its memory begins with a page: V8 takes that of a buffer which could be resized from the system in whole pages. */
function newStage(): Uint8Array {
  return new Uint8Array(new ArrayBuffer(STAGE_BYTES, { maxByteLength: STAGE_BYTES }));
}

/**
 * Writes a new file, fsynced; one that is there is written over. False where the file system takes no such writes: then
 * what is there is anything.
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
