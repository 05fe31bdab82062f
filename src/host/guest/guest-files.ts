/**
 * Reads files of the guest through its agent, in pieces that fit into a reply. New files are written by commands instead: qemu-ga
 * creates files with mode 0666, and readers see them half-written. It only fills files that exist and are not read yet.
 */
import { pause } from '../../shared/retry.ts';
import { type GuestAgent, GuestAgentError } from './guest-agent.ts';
import { executeThawed, FROZEN_MS, START_MS } from './thawed.ts';

/** In base64, with its JSON, less than 64 KiB. */
const PIECE_BYTES = 45 * 1024;

export interface FileOptions {
  /** For opening the file (at least 5 s, the default), and again for reading it. */
  readonly timeout_ms?: number;
}

/**
 * Reads a file of at most `max_bytes`. Rejects with GuestAgentError if there is no such file or it is longer, and as
 * {@link GuestAgent.execute}.
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
 * Reads up to `max_bytes` from an offset, and returns the offset used: 0 if the file is shorter now. `end`: returns the file's size
 * and no data. Rejects as {@link readGuestFile}.
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
 * Reads a growing file until `done` accepts its content: true; or until `until` (on performance.now's scale): false.
 * Rejects as {@link readGuestFile}, also if the file does not exist yet.
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
 * Fills an existing empty file without starting a process in the guest. Not atomic. `text`: at most 1 MiB. Rejects with
 * GuestAgentError if there is no such file or no room, and as {@link GuestAgent.execute}.
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
  // The agent writes its buffer at the close.
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

/** Best effort, and retried while the guest is frozen: the agent can hold 1,024 open files. */
async function closeFile(agent: GuestAgent, handle: unknown): Promise<void> {
  const deadline = performance.now() + FROZEN_MS;
  await executeThawed(agent, 'guest-file-close', { handle }, deadline).catch(() => undefined);
}

/**
 * Reads to the end, at most `max_bytes`, in pieces. A short piece is the end, whatever the guest says, so a guest cannot make this
 * read for ever.
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

/** Decodes base64. Anything but a string is empty: Buffer.from would allocate the length that an object claims. */
export function bytesOf(base64: unknown): Buffer {
  return Buffer.from(typeof base64 === 'string' ? base64 : '', 'base64');
}

function deadlineOf({ timeout_ms = START_MS }: FileOptions): number {
  return performance.now() + timeout_ms;
}
