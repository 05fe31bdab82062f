/**
 * Runs commands in a guest, as execs. An exec continues when its reader disconnects, so `ExecHandle` resumes reading at
 * the byte that it has reached. Output comes as server-sent events, and input goes in requests: both need only `fetch`.
 */
import { BerthConnectionError, BerthError, OutputLostError } from './errors.ts';
import type { CreateExecRequest, Exec, SignalExecRequest } from './generated.ts';
import { connection, endsAStream } from './streams.ts';
import { backoffMs, type CallOptions, type Transport, wait } from './transport.ts';

/** A line for `sh -c`, or a program and its arguments. */
export type Command = string | readonly string[];

export interface StartExecOptions extends Omit<CreateExecRequest, 'command'> {
  readonly signal?: AbortSignal | undefined;
  readonly idempotency_key?: string | undefined;
}
export interface ExecOptions extends Omit<StartExecOptions, 'stdin' | 'tty'> {
  /** What the command reads; without it, its input is closed. */
  readonly input?: string | Uint8Array<ArrayBuffer> | undefined;
}

/** A piece of output. */
export interface ExecOutput {
  readonly stream: 'stdout' | 'stderr';
  readonly data: Uint8Array<ArrayBuffer>;
  /** Of its first byte, among both streams' bytes in the order of their arrival. */
  readonly offset: number;
}

/** A command that has ended. */
export interface ExecResult {
  readonly exec: Exec;
  /** Null: a signal ended it, or the boot did. */
  readonly exit_code: number | null;
  /** As UTF-8; other bytes become U+FFFD. */
  readonly stdout: string;
  readonly stderr: string;
  readonly stdout_bytes: Uint8Array<ArrayBuffer>;
  readonly stderr_bytes: Uint8Array<ArrayBuffer>;
}

/** Of one request; the server takes a mebibyte. */
const INPUT_BYTES = 256 * 1024;
/** Failures in a row before reading gives up: some minutes. */
const MAX_FAILURES = 40;

/** A command that runs, or has run. */
export class ExecHandle {
  readonly id: string;
  readonly #transport: Transport;
  readonly #path: { readonly id: string; readonly exec_id: string };
  #exec: Exec;
  #offset = 0;

  constructor(transport: Transport, exec: Exec) {
    this.#transport = transport;
    this.#exec = exec;
    this.id = exec.id;
    this.#path = { id: exec.instance_id, exec_id: exec.id };
  }

  /** The exec as last seen. */
  get exec(): Exec {
    return this.#exec;
  }

  /** How much of the output has been read: where `output` continues. */
  get offset(): number {
    return this.#offset;
  }

  /**
   * Its output as it comes, to its end and without a gap, from `offset` or where the last reading stopped. Afterwards `exec` has
   * the exit code. @throws OutputLostError
   */
  async *output({
    offset,
    signal,
  }: {
    readonly offset?: number | undefined;
    readonly signal?: AbortSignal | undefined;
  } = {}): AsyncGenerator<ExecOutput, void, undefined> {
    this.#offset = offset ?? this.#offset;
    let failure: unknown = new BerthConnectionError('the output ended before the command');
    for (let failures = 0; failures <= MAX_FAILURES; failures++) {
      const input = { path: this.#path, query: { offset: this.#offset, follow: 'true' } } as const;
      try {
        for await (const frame of connection(this.#transport, 'getExecOutput', input, {}, { signal })) {
          failures = 0;
          if (frame.event === 'exit') {
            this.#exec = JSON.parse(frame.text) as Exec;
            return;
          }
          if (frame.event === 'gap') {
            const { lost_bytes, offset: first_kept } = JSON.parse(frame.text);
            throw new OutputLostError(lost_bytes, first_kept);
          }
          if ((frame.event !== 'stdout' && frame.event !== 'stderr') || frame.id === null) continue;
          const data = Uint8Array.from(atob(frame.text), (character) => character.charCodeAt(0));
          this.#offset = Number(frame.id);
          yield { stream: frame.event, data, offset: this.#offset - data.length };
        }
      } catch (error) {
        signal?.throwIfAborted();
        if (endsAStream(error)) throw lostOutput(error) ?? error;
        failure = error;
      }
      await wait(backoffMs(failures), signal);
    }
    throw failure;
  }

  /** Waits for its end. Drops the output that was not read before. */
  async wait({ signal }: Pick<CallOptions, 'signal'> = {}): Promise<Exec> {
    while (this.#exec.state === 'running') {
      const output = this.output({ signal });
      try {
        while (!(await output.next()).done);
      } catch (error) {
        if (!(error instanceof OutputLostError)) throw error;
        this.#offset = error.offset;
      }
    }
    return this.#exec;
  }

  /** Waits for its end, with all of its output. @throws OutputLostError */
  async collect({ signal }: Pick<CallOptions, 'signal'> = {}): Promise<ExecResult> {
    const found = { stdout: [] as Uint8Array<ArrayBuffer>[], stderr: [] as Uint8Array<ArrayBuffer>[] };
    for await (const { stream, data } of this.output({ offset: 0, signal })) found[stream].push(data);
    const [stdout_bytes, stderr_bytes] = [joined(found.stdout), joined(found.stderr)];
    const textOf = (bytes: Uint8Array) => new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
    const texts = { stdout: textOf(stdout_bytes), stderr: textOf(stderr_bytes) };
    return { exec: this.#exec, exit_code: this.#exec.exit_code, ...texts, stdout_bytes, stderr_bytes };
  }

  async get(options?: CallOptions): Promise<Exec> {
    this.#exec = await this.#transport.call('getExec', { path: this.#path }, options);
    return this.#exec;
  }

  /** Sends input, and waits until the guest has room for more. With `eof`, the input then ends. */
  async write(
    data: string | Uint8Array<ArrayBuffer>,
    { eof = false, ...options }: CallOptions & { readonly eof?: boolean } = {},
  ): Promise<void> {
    const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data;
    for (let at = 0; at === 0 || at < bytes.length; at += INPUT_BYTES) {
      const end = at + INPUT_BYTES;
      const query = { eof: eof && end >= bytes.length ? 'true' : 'false' } as const;
      const body = bytes.subarray(at, end);
      await this.#transport.call('writeExecInput', { path: this.#path, query, body }, options);
    }
  }

  closeInput(options?: CallOptions): Promise<void> {
    return this.write('', { ...options, eof: true });
  }

  /** Sends a signal such as `SIGTERM` to the process group. */
  async signal(signal: SignalExecRequest['signal'], options?: CallOptions): Promise<void> {
    await this.#transport.call('signalExec', { path: this.#path, body: { signal } }, options);
  }

  /** Changes the size of its terminal. */
  async resize(columns: number, rows: number, options?: CallOptions): Promise<void> {
    await this.#transport.call('resizeExec', { path: this.#path, body: { columns, rows } }, options);
  }

  /** Kills the process group. The exec stays in the list. */
  async kill(options?: CallOptions): Promise<void> {
    await this.#transport.call('killExec', { path: this.#path }, options);
  }
}

/** What a 409 says of output that is no longer kept; undefined: it is another error. */
function lostOutput(error: unknown): OutputLostError | undefined {
  if (!(error instanceof BerthError) || error.code !== 'CONFLICT') return undefined;
  for (const { field, issue } of error.details) {
    const [, lost, first_kept] = /^lost (\d+), first kept (\d+)$/.exec(issue) ?? [];
    if (field === 'offset' && lost !== undefined)
      return new OutputLostError(Number(lost), Number(first_kept));
  }
  return undefined;
}

export async function startExec(
  transport: Transport,
  id: string,
  command: Command,
  { signal, idempotency_key, timeout_seconds = null, ...settings }: StartExecOptions,
): Promise<ExecHandle> {
  const words = typeof command === 'string' ? ['sh', '-c', command] : [...command];
  const body = { ...settings, command: words, timeout_seconds };
  const exec = await transport.call('createExec', { path: { id }, body }, { signal, idempotency_key });
  return new ExecHandle(transport, exec);
}

export async function runExec(
  transport: Transport,
  id: string,
  command: Command,
  { input, ...options }: ExecOptions,
): Promise<ExecResult> {
  const stdin = input === undefined ? {} : { stdin: true };
  const handle = await startExec(transport, id, command, { ...options, ...stdin });
  const { signal } = options;
  const feed = async () => {
    if (input !== undefined)
      await handle.write(input, { signal, eof: true }).catch((error: unknown) => inputFailed(handle, error));
  };
  const [result] = await Promise.all([handle.collect({ signal }), feed()]);
  return result;
}

async function inputFailed(handle: ExecHandle, error: unknown): Promise<void> {
  // It has ended without reading all of its input, as `head` does.
  if (error instanceof BerthError && error.code === 'CONFLICT') return;
  // A command must not take a part of its input for all of it.
  await handle.kill();
  throw error;
}

function joined(pieces: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(pieces.reduce((length, piece) => length + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}
