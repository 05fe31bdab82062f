/**
 * The connection to a guest's exec supervisor (exec-supervisor.pl), over the Unix socket of its virtio port. It is open
 * as long as the machine is: QEMU holds the host's first frame, the hello, until a supervisor opens the guest's end.
 * `session` names the supervisor that has answered. If it changes, the execs of the supervisor before have ended: the
 * guest was booted again, or somebody in the guest ended that supervisor.
 */
import { randomBytes } from 'node:crypto';
import { PacedReader, ReadBudget } from '../qemu/paced-reader.ts';

/**
 * The frames between this host and an exec's supervisor (exec-supervisor.pl), with their types.
 *
 * To the guest: between 0x7E bytes, with 0x7D as the escape (RFC 1662), so that a frame cut off by the end of an agent damages no
 * other. From the guest: the nonce of our hello, then frames with their length in front. What comes before the nonce answers an
 * earlier agent. A guest can send anything: lengths are bounded, and payloads are checked where they are read.
 */
export const TO_GUEST = {
  /** The nonce. Everything unacknowledged follows again. */
  hello: 'H',
  start: 'S',
  /** The words of a task (file-tasks.pl). */
  task: 'T',
  /** Offset, bytes. */
  input: 'I',
  eof: 'E',
  /** Columns, rows. */
  resize: 'R',
  signal: 'K',
  /** Offset: everything before it is written down here. */
  acknowledge: 'A',
  /** 1: it has readers to wait for, and waits for a while if it loses this host; 0: it has none. */
  wait: 'W',
  /** Its end is written down here. */
  forget: 'F',
  ping: 'P',
} as const;

export const FROM_GUEST = {
  /** The supervisor's session, which begins with its boot. */
  hello: 'H',
  /** An exec that it has: base, received input, end of input, whether it has readers to wait for. */
  listed: 'L',
  /** The list is complete. */
  all_listed: 'Z',
  started: 'S',
  /** Field, NUL, issue. */
  refused: 'N',
  /** Offset, stream, bytes. */
  output: 'O',
  /** Offset of the input that the exec has read. */
  taken: 'W',
  /** By a signal?, code or signal, timed out?, all bytes of output, milliseconds ago. */
  exited: 'X',
  pong: 'P',
} as const;

const ID_BYTES = 26;
const HEADER_BYTES = 1 + ID_BYTES;
const NO_ID = ' '.repeat(ID_BYTES);
const FLAG = 0x7e;
const ESCAPE = 0x7d;
const FLIP = 0x20;
export const NONCE_BYTES = 16;
/** Of a frame from the guest: output of 60 KiB, or the words of an exec. */
const FRAME_MAX = 4 * 1024 * 1024;

export interface GuestFrame {
  readonly type: string;
  /** The last 26 characters of its id; empty: none. */
  readonly exec: string;
  readonly payload: Buffer;
}

export class BrokenFrameError extends Error {
  override name = 'BrokenFrameError';
}

/** `exec`: the last 26 characters of its id. */
function frameToGuest(type: string, exec = NO_ID, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const plain = Buffer.alloc(4 + HEADER_BYTES + payload.length);
  plain.writeUInt32BE(HEADER_BYTES + payload.length);
  plain.write(type + exec, 4, 'latin1');
  plain.set(payload, 4 + HEADER_BYTES);
  let escapes = 0;
  for (const byte of plain) if (byte === FLAG || byte === ESCAPE) escapes += 1;
  const stuffed = Buffer.alloc(plain.length + escapes + 2, FLAG);
  let at = 1;
  for (const byte of plain) {
    const special = byte === FLAG || byte === ESCAPE;
    if (special) stuffed[at++] = ESCAPE;
    stuffed[at++] = special ? byte ^ FLIP : byte;
  }
  return stuffed;
}

/** Reads the frames after the nonce. */
class GuestFrames {
  readonly #nonce: Buffer;
  #in_step = false;
  #held: Buffer[] = [];
  #held_bytes = 0;
  #wanted_bytes = 0;

  constructor(nonce: Buffer) {
    this.#nonce = nonce;
  }

  /** The frames that `chunk` completes. @throws BrokenFrameError */
  push(chunk: Buffer): GuestFrame[] {
    this.#held.push(chunk);
    this.#held_bytes += chunk.length;
    if (this.#held_bytes < this.#wanted_bytes) return [];
    let rest = this.#held.length === 1 ? chunk : Buffer.concat(this.#held);
    if (!this.#in_step) rest = this.#findNonce(rest);
    const found: GuestFrame[] = [];
    for (this.#wanted_bytes = 4; this.#in_step && rest.length >= 4; this.#wanted_bytes = 4) {
      const length = rest.readUInt32BE();
      if (length < HEADER_BYTES || length > FRAME_MAX)
        throw new BrokenFrameError(`a frame of ${length} bytes`);
      if (rest.length < 4 + length) {
        this.#wanted_bytes = 4 + length;
        break;
      }
      found.push({
        type: rest.toString('latin1', 4, 5),
        exec: rest.toString('latin1', 5, 4 + HEADER_BYTES).replaceAll('\0', ''),
        payload: rest.subarray(4 + HEADER_BYTES, 4 + length),
      });
      rest = rest.subarray(4 + length);
    }
    this.#held = rest.length === 0 ? [] : [rest];
    this.#held_bytes = rest.length;
    return found;
  }

  #findNonce(bytes: Buffer): Buffer {
    const at = bytes.indexOf(this.#nonce);
    if (at === -1) return bytes.subarray(Math.max(0, bytes.length - NONCE_BYTES + 1));
    this.#in_step = true;
    return bytes.subarray(at + NONCE_BYTES);
  }
}

/** Of one VM: its execs may use a quarter of this thread, and no more than a fast network. */
const PACE = { bytes_per_second: 256 * 1024 * 1024, burst_bytes: 32 * 1024 * 1024, times: 4 };
const PING_MS = 3_000;
/** The guest's boot, then the supervisor. */
const SESSION = /^[0-9a-f]{64}$/;
const BOOT_CHARACTERS = 32;

export const isSameBoot = (one: string, other: string) =>
  one.slice(0, BOOT_CHARACTERS) === other.slice(0, BOOT_CHARACTERS);
/** Of frames that the guest has not taken. */
const UNSENT_BYTES = 16 * 1024 * 1024;

export class ExecChannel {
  readonly #input: PacedReader;
  readonly #frames: GuestFrames;
  readonly #onFrame: (frame: GuestFrame) => void;
  readonly #pings: NodeJS.Timeout;
  #session: string | null = null;
  #heard_at_ms = performance.now();
  #closed = false;

  /** `onFrame`: in order, beginning with the hello that sets {@link session}. `onClosed`: once, also after {@link close}. */
  constructor(socket_path: string, onFrame: (frame: GuestFrame) => void, onClosed: () => void) {
    const nonce = randomBytes(NONCE_BYTES);
    this.#frames = new GuestFrames(nonce);
    this.#onFrame = onFrame;
    const budget = new ReadBudget(PACE);
    this.#input = new PacedReader(socket_path, budget, (chunk) => budget.spendOn(() => this.#receive(chunk)));
    const { socket } = this.#input;
    socket.on('error', () => socket.destroy());
    socket.on('close', () => {
      clearInterval(this.#pings);
      this.#closed = true;
      onClosed();
    });
    this.#pings = setInterval(() => {
      if (this.#session !== null) this.send(TO_GUEST.ping);
    }, PING_MS);
    this.#input.expect(true);
    this.#write(frameToGuest(TO_GUEST.hello, undefined, nonce));
  }

  get session(): string | null {
    return this.#session;
  }
  get closed(): boolean {
    return this.#closed;
  }
  /** Since the supervisor's last frame, or since the channel was opened. */
  get silent_ms(): number {
    return performance.now() - this.#heard_at_ms;
  }

  /** `exec`: the last 26 characters of its id. */
  send(type: string, exec?: string, payload?: Uint8Array): void {
    this.#write(frameToGuest(type, exec, payload));
  }

  close(): void {
    this.#input.socket.destroy();
  }

  #write(bytes: Buffer): void {
    const { socket } = this.#input;
    // A guest that takes nothing.
    if (socket.writableLength > UNSENT_BYTES) socket.destroy();
    else if (!socket.destroyed) socket.write(bytes);
  }

  #receive(chunk: Buffer): void {
    try {
      for (const frame of this.#frames.push(chunk)) {
        this.#heard_at_ms = performance.now();
        if (frame.type === FROM_GUEST.hello) {
          const session = frame.payload.toString('latin1');
          if (!SESSION.test(session)) throw new Error('no session');
          this.#session = session;
        }
        this.#onFrame(frame);
      }
    } catch {
      // It breaks the protocol. Its execs are looked for again by the next channel.
      this.close();
    }
  }
}
