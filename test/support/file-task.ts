/** Runs file-tasks.pl on this machine, as the exec supervisor does in a guest, and exchanges its frames. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  type FileFields,
  FROM_FILES,
  fieldsOf,
  StreamFrames,
  streamFrame,
  TO_FILES,
} from '../../src/protocol/file-stream.ts';

const PROGRAM = readFileSync(join(import.meta.dirname, '..', '..', 'src/host/execs/file-tasks.pl'), 'utf8');

export interface Heard {
  readonly type: number;
  readonly payload: Buffer;
}

export class FileTask {
  readonly child: ChildProcess;
  readonly #frames: AsyncGenerator<Heard>;

  /** Words may be bytes: they are passed percent-encoded. */
  constructor(verb: string, ...words: readonly (string | Buffer)[]) {
    const decode = '@ARGV = map { s/%([0-9a-f]{2})/chr hex $1/ger } @ARGV;';
    const encoded = [verb, ...words].map((word) => Buffer.from(word).toString('hex').replace(/../g, '%$&'));
    this.child = spawn('perl', ['-e', `${PROGRAM}\n${decode} Files::run(@ARGV);`, ...encoded], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    this.child.stdin?.on('error', () => undefined);
    this.#frames = this.#read();
  }

  async *#read(): AsyncGenerator<Heard> {
    const frames = new StreamFrames();
    for await (const chunk of this.child.stdout ?? []) yield* frames.push(chunk as Buffer);
  }

  say(type: keyof typeof TO_FILES, payload: Uint8Array = Buffer.alloc(0)): void {
    this.child.stdin?.write(streamFrame(TO_FILES[type], payload));
  }

  /** The next frame of this type. @throws with the code of `failed` */
  async next(type: keyof typeof FROM_FILES): Promise<Buffer> {
    const { type: got, payload } = await this.any();
    if (got !== FROM_FILES[type]) throw new Error(`frame ${got}, not ${type}`);
    return payload;
  }

  /** @throws with the code of `failed` */
  async any(): Promise<Heard> {
    const { value, done } = await this.#frames.next();
    if (done === true) throw new Error('the task ended');
    if (value.type === FROM_FILES.failed) throw new Error(value.payload.toString().split('\0')[0]);
    return value;
  }

  async end(): Promise<void> {
    this.child.stdin?.end();
    if (this.child.exitCode === null) await once(this.child, 'exit');
  }
}

export async function write(
  path: string | Buffer,
  content: string | Uint8Array,
  more: { mode?: string; user?: string; wanted?: string } = {},
) {
  const task = new FileTask('write', path, more.mode ?? '', more.user ?? '');
  try {
    await task.next('opened');
    task.say('content', Buffer.from(content));
    task.say('commit', Buffer.from(more.wanted ?? ''));
    const done = await task.next('done');
    return { is_new: done.toString('latin1', 0, 2) === '1\0', fields: fieldsOf(done.subarray(2)) };
  } finally {
    await task.end();
  }
}

export async function read(
  path: string | Buffer,
  offset = 0,
  length?: number,
): Promise<{ fields: FileFields; content: Buffer }> {
  const task = new FileTask('read', path);
  try {
    const fields = fieldsOf(await task.next('opened'));
    const wanted = length ?? fields.size ?? Number.MAX_SAFE_INTEGER;
    const range = Buffer.alloc(16);
    range.writeBigUInt64BE(BigInt(offset));
    range.writeBigUInt64BE(BigInt(wanted), 8);
    task.say('range', range);
    const parts: Buffer[] = [];
    for await (const part of contentOf(task)) parts.push(part);
    return { fields, content: Buffer.concat(parts) };
  } finally {
    await task.end();
  }
}

async function* contentOf(task: FileTask): AsyncGenerator<Buffer> {
  for (;;) {
    const part = await task.any();
    if (part.type !== FROM_FILES.content) return;
    yield part.payload;
  }
}

/** A call that only answers: its last frame. */
export async function run(verb: string, ...words: readonly (string | Buffer)[]): Promise<Buffer> {
  const task = new FileTask(verb, ...words);
  try {
    return await task.next('done');
  } finally {
    await task.end();
  }
}

/** Up to `count` names after the one named. */
export async function list(
  path: string | Buffer,
  after: string | Buffer = '',
  count = 1000,
): Promise<FileFields[]> {
  const task = new FileTask('list', path, after, String(count));
  const found: FileFields[] = [];
  try {
    for (;;) {
      const { type, payload } = await task.any();
      if (type !== FROM_FILES.entry) return found;
      found.push(fieldsOf(payload));
    }
  } finally {
    await task.end();
  }
}
