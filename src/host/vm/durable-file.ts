/** Files that are on the disk when a call returns: what must be there after a power cut. */
import { constants } from 'node:fs';
import { open, rename } from 'node:fs/promises';
import { dirname } from 'node:path';

/**
 * Puts on the disk what whoever has written to the file, this process or another, has left in the host's cache. A link is not followed.
 * @throws the system's error, also one of an earlier write that nobody was told of
 */
export async function syncFile(path: string): Promise<void> {
  const handle = await open(path, constants.O_RDWR | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    await handle.datasync();
  } finally {
    await handle.close();
  }
}

/** The last write of each path that is under way. */
const writing = new Map<string, Promise<void>>();

/**
 * Temporary file, fsync, rename, fsync of the folder: the old content or the new, after any crash. Of several at once each is
 * done in its turn, and the last that was asked for stays: they share the temporary file.
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
