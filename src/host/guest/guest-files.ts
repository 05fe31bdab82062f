/**
 * Files of the guest, through its agent, in pieces that fit into a reply. Files are written by commands: qemu-ga's own way makes
 * them of mode 0666, and shows half of one to whoever reads it then; it serves for one that is there, before it is read.
 */
import { pause } from '../../lib/backoff.ts';
import { GuestAgentError } from './agent-errors.ts';
import type { GuestAgent } from './guest-agent.ts';
import { executeThawed, FROZEN_MS, START_MS } from './thawed.ts';

/** As base64, and with the words around it, a reply of less than 64 KiB. */
const PIECE_BYTES = 45 * 1024;

export interface FileOptions {
  /** For opening the file (5 s at least, and by default), and again for reading all of it. */
  readonly timeout_ms?: number;
}

/**
 * Up to `max_bytes` of a file of the guest. Rejects with GuestAgentError when there is no such file, when it is
 * longer, and with what {@link GuestAgent.execute} rejects with.
 */
export async function readGuestFile(
  agent: GuestAgent,
  path: string,
  max_bytes: number,
  options: FileOptions = {},
): Promise<Buffer> {
  const handle = await openFile(agent, path, 'r', options);
  try {
    const data = await readOpenFile(agent, handle, max_bytes + 1, deadlineOf(options));
    if (data.length > max_bytes)
      throw new GuestAgentError('read', `${path} is longer than ${max_bytes} bytes`);
    return data;
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * What a file of the guest holds from an offset on, up to `max_bytes`, and the offset that it was read from: 0 where the
 * file has become shorter, its end (and nothing) for `end`. Rejects as {@link readGuestFile}.
 */
export async function readGuestFileFrom(
  agent: GuestAgent,
  path: string,
  from: number | 'end',
  { max_bytes, ...options }: FileOptions & { readonly max_bytes: number },
): Promise<{ readonly offset: number; readonly data: Buffer }> {
  const handle = await openFile(agent, path, 'r', options);
  const seek = async (offset: number, whence: 'set' | 'end') => {
    const at = await agent.execute('guest-file-seek', { handle, offset, whence }, options);
    return Number((at as { position?: unknown } | null)?.position);
  };
  try {
    const size = await seek(0, 'end');
    if (from === 'end' || from === size) return { offset: size, data: Buffer.alloc(0) };
    const offset = await seek(from < size ? from : 0, 'set');
    const wanted = Math.min(max_bytes, size - offset);
    const data = await readOpenFile(agent, handle, wanted, deadlineOf(options));
    return { offset, data };
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * Reads a file that grows until `done` says so of what it holds: true; false once `until` (by `performance.now()`) has come.
 * Rejects as {@link readGuestFile}, also when the file is not there yet.
 */
export async function watchGuestFile(
  agent: GuestAgent,
  path: string,
  watch: {
    readonly done: (held: Buffer) => boolean;
    readonly max_bytes: number;
    readonly poll_ms: number;
    readonly until: number;
    readonly signal: AbortSignal;
  },
): Promise<boolean> {
  const handle = await openFile(agent, path, 'r', {});
  try {
    for (let held = Buffer.alloc(0); ; ) {
      const more = await readOpenFile(agent, handle, watch.max_bytes - held.length, deadlineOf({}));
      held = Buffer.concat([held, more]);
      if (watch.done(held)) return true;
      const waits = performance.now() < watch.until && held.length < watch.max_bytes;
      if (!waits || !(await pause(watch.poll_ms, watch.signal))) return false;
    }
  } finally {
    await closeFile(agent, handle);
  }
}

/**
 * Writes a file that is there and empty; without a process in the guest, but in pieces. `text` has at most 1 MiB. Rejects with
 * GuestAgentError when there is no such file or no room, and with what {@link GuestAgent.execute} rejects with.
 */
export async function fillGuestFile(
  agent: GuestAgent,
  path: string,
  text: string,
  options: FileOptions = {},
): Promise<void> {
  const bytes = Buffer.from(text);
  const handle = await openFile(agent, path, 'r+', options);
  try {
    const data = { handle, 'buf-b64': bytes.toString('base64') };
    const reply = (await agent.execute('guest-file-write', data, options)) as { count?: unknown } | null;
    if (reply?.count !== bytes.length) throw new GuestAgentError('write', `${path} was not written whole`);
  } catch (error) {
    await closeFile(agent, handle);
    throw error;
  }
  // What the agent has kept of it is written now.
  await agent.execute('guest-file-close', { handle }, options);
}

function openFile(
  agent: GuestAgent,
  path: string,
  mode: 'r' | 'r+',
  { timeout_ms = START_MS }: FileOptions,
): Promise<unknown> {
  return agent.execute('guest-file-open', { path, mode }, { timeout_ms: Math.max(timeout_ms, START_MS) });
}

/** Best effort, also where a flush froze the guest meanwhile: what is left open stays so, and the agent can have but 1024. */
async function closeFile(agent: GuestAgent, handle: unknown): Promise<void> {
  const deadline = performance.now() + FROZEN_MS;
  await executeThawed(agent, 'guest-file-close', { handle }, deadline).catch(() => undefined);
}

/**
 * To the end, at most so many bytes, in whole pieces: less than was asked for is the end, whatever else is said of it. What
 * a guest answers cannot make it ask more often than that.
 */
async function readOpenFile(
  agent: GuestAgent,
  handle: unknown,
  max_bytes: number,
  deadline: number,
): Promise<Buffer> {
  const parts: Buffer[] = [];
  for (let left = max_bytes; left > 0; ) {
    const count = Math.min(PIECE_BYTES, left);
    const args = { handle, count };
    const reply = (await executeThawed(agent, 'guest-file-read', args, deadline)) as { 'buf-b64'?: unknown };
    const part = bytesOf(reply?.['buf-b64']).subarray(0, count);
    parts.push(part);
    left -= part.length;
    if (part.length < count) break;
  }
  return Buffer.concat(parts);
}

/** Of base64; nothing where the guest says no text: of an object Buffer.from would make as many bytes as that says it has. */
export function bytesOf(base64: unknown): Buffer {
  return Buffer.from(typeof base64 === 'string' ? base64 : '', 'base64');
}

function deadlineOf({ timeout_ms = START_MS }: FileOptions): number {
  return performance.now() + timeout_ms;
}
