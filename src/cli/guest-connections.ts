/**
 * Connects to a guest over the API: to an exec (`attach`), or to a TCP port (`forwardConnection`). Only the commands
 * that need it load this file.
 *
 * If the connection to an exec breaks, for example at a restart of the server, it reconnects at the byte that it has
 * reached. It gives up instead if input from stdin may be lost, or if output in between is no longer kept.
 */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { WebSocket } from 'ws';
import type { Berth, Exec } from '../../client/src/berth.ts';
import { writeOrPause } from '../shared/streams.ts';
import { CommandError, EXIT } from './command-error.ts';
import type { Terminal } from './terminal.ts';

const BUFFER_BYTES = 256 * 1024;
/** Larger messages are refused by the server. */
const MESSAGE_BYTES = 32 * 1024;
const OVER = 1000;
/** Closed for good: the credential ended. */
const REVOKED = 1008;
const HANDSHAKE_MS = 15_000;
const RETRY_MS = 500;
const TRIES = 120;
/** Ctrl-], as for the console. */
const DETACH_BYTE = 0x1d;

/** Of this terminal; some say 0 while they do not know it. */
export function terminalSize(): { readonly columns: number; readonly rows: number } {
  const { columns, rows } = process.stdout;
  return { columns: columns || 80, rows: rows || 24 };
}

export interface Attachment {
  readonly berth: Berth;
  readonly instance: { readonly id: string; readonly name: string };
  readonly exec_id: string;
  /** Null: from the first byte that is kept. */
  readonly offset: number | null;
  /** `terminal`: every key goes to the exec, until Ctrl-]. */
  readonly input: 'none' | 'stdin' | 'terminal';
  readonly terminal: Terminal;
  /** Ctrl-C: passed on to the exec. */
  readonly signal: AbortSignal;
}

/** The ended exec; null: detached. @throws CommandError */
export async function attach(attachment: Attachment): Promise<Exec | null> {
  const connection = new Connection(attachment);
  try {
    return await connection.run();
  } finally {
    connection.close();
  }
}

interface Message {
  readonly type: string;
  readonly offset: number;
  readonly lost_bytes: number;
  readonly exec: Exec;
}

class Connection {
  readonly #to: Attachment;
  readonly #decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  #offset: number;
  /** Where the output begins is of no concern until then. */
  #begun: boolean;
  #socket: WebSocket | null = null;
  /** What is attached when the output has room again may be another socket. */
  readonly #source = { pause: () => this.#socket?.pause(), resume: () => this.#socket?.resume() };
  #sent = false;
  #input_ended = false;
  #detached: () => void = () => undefined;

  constructor(attachment: Attachment) {
    this.#to = attachment;
    this.#offset = attachment.offset ?? 0;
    this.#begun = attachment.offset !== null;
  }

  async run(): Promise<Exec | null> {
    const { instance, exec_id } = this.#to;
    this.#to.signal.addEventListener('abort', () => this.#say({ type: 'signal', signal: 'SIGINT' }));
    const detached = new Promise<null>((resolve) => {
      this.#detached = () => resolve(null);
    });
    for (let tries = 0; tries < TRIES; tries++) {
      const before = this.#offset;
      const exec = await Promise.race([this.#connect(), detached]);
      if (exec !== 'again') return exec;
      if (this.#sent && this.#to.input === 'stdin')
        throw new CommandError(
          'the connection was lost while input was on its way; some of it may be missing',
          {
            next: `berth exec attach ${instance.name} ${exec_id}`,
            exit_code: EXIT.unavailable,
          },
        );
      if (this.#offset > before) tries = 0;
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
    throw new CommandError('the connection to the command was lost; it may still run', {
      next: `berth exec attach ${instance.name} ${exec_id}`,
      exit_code: EXIT.unavailable,
    });
  }

  close(): void {
    this.#socket?.close(OVER);
    const { stdin, stdout } = process;
    stdin.off('data', this.#onInput).off('end', this.#onInputEnd).pause();
    stdout.off('resize', this.#onResize);
    if (this.#to.input === 'terminal') stdin.setRawMode(false);
  }

  #connect(): Promise<Exec | 'again'> {
    const { berth, instance, exec_id } = this.#to;
    const { url, headers } = berth.instances.attach(instance.id, exec_id, this.#offset);
    const socket = new WebSocket(url, { headers, perMessageDeflate: false, handshakeTimeout: HANDSHAKE_MS });
    this.#socket = socket;
    return new Promise((resolve, reject) => {
      socket.on('error', () => undefined);
      socket.on('unexpected-response', (_request, response) => {
        response.resume();
        socket.terminate();
        const { statusCode = 0 } = response;
        if (statusCode >= 500 || statusCode === 429) return resolve('again');
        // The API says why.
        berth
          .call('getExecOutput', { path: { id: instance.id, exec_id }, query: { offset: this.#offset } })
          .then(() => reject(new CommandError(`the server answers ${statusCode}`)), reject);
      });
      socket.on('message', (data: Buffer, is_binary) => {
        if (is_binary) return this.#output(data);
        const message = JSON.parse(String(data)) as Message;
        if (message.type === 'attached') this.#attached();
        if (message.type === 'gap') this.#gap(message).then(resolve, reject);
        if (message.type === 'exit') resolve(message.exec);
      });
      socket.on('close', (code, reason) => {
        if (code === REVOKED) reject(new CommandError(String(reason), { exit_code: EXIT.not_authorised }));
        else resolve('again');
      });
    });
  }

  /** Begins with what is kept, if that is what was asked for. @throws CommandError */
  async #gap({ offset, lost_bytes }: Pick<Message, 'offset' | 'lost_bytes'>): Promise<'again'> {
    const { terminal, instance, exec_id } = this.#to;
    const lost = `${lost_bytes} bytes of the output, from byte ${this.#offset} on, are no longer kept`;
    if (this.#begun)
      throw new CommandError(lost, {
        next: `berth exec attach ${instance.name} ${exec_id} --offset ${offset}`,
        exit_code: EXIT.output_lost,
      });
    terminal.warn(`berth: ${lost}`);
    this.#offset = offset;
    return 'again';
  }

  #attached(): void {
    const { input } = this.#to;
    this.#begun = true;
    if (input === 'none') return;
    const { stdin, stdout } = process;
    if (this.#input_ended) this.#say({ type: 'eof' });
    if (input === 'terminal') {
      stdin.setRawMode(true);
      stdout.off('resize', this.#onResize).on('resize', this.#onResize);
      this.#onResize();
    }
    // The input is ours from now on: it ends if this process is lost, and not if it detaches.
    this.#socket?.send(Buffer.of(0), { binary: true });
    stdin.off('data', this.#onInput).off('end', this.#onInputEnd);
    stdin.on('data', this.#onInput).on('end', this.#onInputEnd).resume();
  }

  #output(message: Buffer): void {
    const [channel] = message;
    const bytes = message.subarray(1);
    const name = channel === 2 ? 'stderr' : 'stdout';
    this.#offset += bytes.length;
    const stream = process[name];
    // A terminal gets no control sequences, unless it is the exec's own.
    if (stream.isTTY && this.#to.input !== 'terminal') {
      this.#to.terminal.guest(this.#decoders[name].decode(bytes, { stream: true }), name);
      return;
    }
    writeOrPause(this.#source, stream, bytes);
  }

  readonly #onInput = (typed: Buffer): void => {
    const socket = this.#socket;
    if (socket?.readyState !== WebSocket.OPEN) return;
    const end = this.#to.input === 'terminal' ? typed.indexOf(DETACH_BYTE) : -1;
    const bytes = end === -1 ? typed : typed.subarray(0, end);
    for (let at = 0; at < bytes.length; at += MESSAGE_BYTES) {
      this.#sent = true;
      const piece = Buffer.concat([Buffer.of(0), bytes.subarray(at, at + MESSAGE_BYTES)]);
      socket.send(piece, { binary: true }, () => {
        if (socket.bufferedAmount < BUFFER_BYTES && !this.#input_ended) process.stdin.resume();
      });
    }
    if (socket.bufferedAmount >= BUFFER_BYTES) process.stdin.pause();
    if (end !== -1) this.#detached();
  };

  readonly #onInputEnd = (): void => {
    this.#input_ended = true;
    this.#say({ type: 'eof' });
  };

  readonly #onResize = (): void => {
    this.#say({ type: 'resize', ...terminalSize() });
  };

  #say(message: object): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }
}

/** The text message that ends one direction. */
const END = 'end';
const GIVE_UP_MS = 15_000;

/** `socket` is paused. `onProblem`: why it ended, in one line. */
export function forwardConnection(
  socket: Socket,
  { url, headers }: { readonly url: string; readonly headers: Readonly<Record<string, string>> },
  onProblem: (problem: string) => void,
): void {
  const stream = new WebSocket(url, { headers, perMessageDeflate: false, handshakeTimeout: GIVE_UP_MS });
  socket.setNoDelay(true);
  socket.on('error', () => socket.destroy());
  socket.on('close', () => stream.close(OVER));
  stream.on('error', (error) => {
    if (!socket.destroyed) onProblem(error.message);
    socket.destroy();
  });
  stream.on('unexpected-response', (_request, response) => {
    void messageIn(response).then((message) => {
      if (!socket.destroyed) onProblem(message);
      socket.destroy();
    });
  });
  stream.on('close', (code, reason) => {
    if (code !== OVER && !socket.destroyed) onProblem(String(reason) || `the connection was lost (${code})`);
    // What the guest has sent is delivered first.
    socket.end(() => socket.destroy());
  });
  stream.on('message', (data: Buffer, is_binary) => {
    if (!is_binary) {
      if (String(data) === END) socket.end();
      return;
    }
    writeOrPause(stream, socket, data);
  });
  socket.on('data', (chunk) => send(stream, socket, chunk as Buffer));
  socket.on('end', () => stream.readyState === WebSocket.OPEN && stream.send(END));
  stream.on('open', () => socket.resume());
}

function send(stream: WebSocket, socket: Socket, chunk: Buffer): void {
  if (stream.readyState !== WebSocket.OPEN) return;
  for (let at = 0; at < chunk.length; at += MESSAGE_BYTES) {
    stream.send(chunk.subarray(at, at + MESSAGE_BYTES), { binary: true }, () => {
      if (socket.isPaused() && stream.bufferedAmount < BUFFER_BYTES) socket.resume();
    });
  }
  if (stream.bufferedAmount >= BUFFER_BYTES) socket.pause();
}

const ANSWER_BYTES = 16 * 1024;

/** The message of a refusal: `error.message` of the API's body. */
async function messageIn(response: IncomingMessage): Promise<string> {
  let text = '';
  try {
    for await (const chunk of response) {
      text += chunk;
      if (text.length > ANSWER_BYTES) break;
    }
    const { error } = JSON.parse(text) as { error: { message: string } };
    return error.message.replaceAll(/ \((?:GET|POST) …[^)]*\)/g, '');
  } catch {
    return `the server answers ${response.statusCode}`;
  }
}

/** A fetch without a timeout for headers. Node's fetch gives up after five minutes, and a guest command may take ten. */
export async function fetchWithoutTimeout(): Promise<typeof globalThis.fetch> {
  const { Agent, fetch } = await import('undici');
  const dispatcher = new Agent({ headersTimeout: 0, bodyTimeout: 0 });
  // The package declares its own Request and Response types, which are the same at run time.
  const waiting = (address: string, init: object) => fetch(address, { ...init, dispatcher });
  return waiting as unknown as typeof globalThis.fetch;
}
