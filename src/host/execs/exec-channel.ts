/**
 * The channel to a guest's exec supervisor, over its port's unix socket. It is open while its machine is: QEMU holds our hello until
 * a supervisor opens the guest's end. `session` names the supervisor that has answered: another one means that the execs of the
 * first have ended with their boot, or with a supervisor that somebody in the guest has ended.
 */
import { randomBytes } from 'node:crypto';
import { PacedReader, ReadBudget } from '../qmp/paced-reader.ts';
import { FROM_GUEST, frameToGuest, type GuestFrame, GuestFrames, NONCE_BYTES, TO_GUEST } from './frames.ts';

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
