/** Replaces and syncs files so that they survive a power cut once the call has returned. */
import { constants } from 'node:fs';
import { open, rename } from 'node:fs/promises';
import { dirname } from 'node:path';

/**
 * Flushes all writes to a file, of any process, from the page cache to the disk. Does not follow a link.
 * @throws the system error, also that of an earlier write that was not reported
 */
export async function syncFile(path: string): Promise<void> {
  const handle = await open(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    await handle.datasync();
  } finally {
    await handle.close();
  }
}

/** The last pending write of each path. */
const writing = new Map<string, Promise<void>>();

/**
 * Temporary file, fsync, rename, fsync of the folder: after a crash the file has the old or the new content. Concurrent
 * writes run in order, because they share the temporary file.
 */
export async function writeFileDurably(path: string, text: string): Promise<void> {
  const mine = (writing.get(path) ?? Promise.resolve())
    .catch(() => undefined)
    .then(() => replaceFile(path, text));
  writing.set(path, mine);
  try {
    await mine;
  } finally {
    if (writing.get(path) === mine) writing.delete(path);
  }
}

async function replaceFile(path: string, text: string): Promise<void> {
  const temporary = `${path}.tmp`;
  const handle = await open(temporary, 'w', 0o600);
  try {
    await handle.writeFile(text);
    await handle.sync();
  } finally {
    await handle.close();
  }
  await rename(temporary, path);
  await syncFolder(dirname(path));
}

export async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
