/**
 * One boot of a simulated guest, which exists only in this process. It has a shell on its serial console, commands,
 * files and TCP ports: port 7 returns what it receives, and ports 80 and 8080 serve a page.
 */
import { createServer as createHttpServer } from 'node:http';
import { createServer, type Server } from 'node:net';
import { type Duplex, duplexPair } from 'node:stream';
import type { VmSample } from '../../src/protocol/host-calls.ts';
import type { Assignment } from '../../src/protocol/types.ts';
import { rfc3339 } from '../../src/shared/clock.ts';
import { Signal } from '../../src/shared/concurrency.ts';
import type { FileTree } from './file-tree.ts';
import { Input, runProgram, type ShellGuest } from './shell.ts';
import { Terminal } from './terminal.ts';

const ECHO_PORT = 7;
const HTTP_PORTS = [80, 8080];
const CONSOLE_LOG_BYTES = 256 * 1024;
const MIB = 1024 * 1024;
/** The part of the loopback that is for guests (`GuestPortAddress`). Only Linux has it without a setting. */
const PORTS_ADDRESS = '127.64.0.1';

/** What is written to an instance's serial console, over all its boots. */
export class SimulatedConsole {
  readonly #watchers = new Set<Duplex>();
  #lines: { readonly at: string; text: string }[] = [];
  #bytes = 0;
  onTyped: (data: Buffer) => void = () => undefined;

  print(data: Buffer): void {
    for (const each of this.#watchers) each.write(data);
    for (const text of data.toString('utf8').split(/(?<=\n)/)) {
      const last = this.#lines.at(-1);
      if (last && !last.text.endsWith('\n')) last.text += text;
      else this.#lines.push({ at: rfc3339(new Date()), text });
      this.#bytes += text.length;
    }
    while (this.#bytes > CONSOLE_LOG_BYTES) this.#bytes -= this.#lines.shift()?.text.length ?? this.#bytes;
  }

  attach(watcher: Duplex): void {
    this.#watchers.add(watcher);
    watcher.on('error', () => watcher.destroy());
    watcher.on('close', () => this.#watchers.delete(watcher));
    watcher.on('end', () => watcher.destroy());
    watcher.on('data', (data: Buffer) => this.onTyped(data));
  }

  read(max_bytes: number, timestamps: boolean): string {
    const lines = this.#lines.map(({ at, text }) => (timestamps ? `${at} ${text}` : text));
    return Buffer.from(lines.join(''))
      .subarray(-max_bytes || Number.POSITIVE_INFINITY)
      .toString('utf8');
  }

  endWatchers(): void {
    for (const each of this.#watchers) each.destroy();
  }
}

export class SimulatedGuest implements ShellGuest {
  readonly hostname: string;
  readonly files: FileTree;
  readonly power: ShellGuest['power'];
  readonly #ended = new AbortController();
  readonly #began_ms = performance.now();
  readonly #memory_bytes: number;
  readonly #listeners = new Map<number, Server>();
  readonly #http = createHttpServer((_, response) => {
    response.setHeader('content-type', 'text/plain; charset=utf-8');
    response.end(`This is ${this.hostname}, a simulated guest.\n`);
  });

  constructor(
    { hostname, memory_mib }: Pick<Assignment['spec'], 'hostname' | 'memory_mib'>,
    files: FileTree,
    console: SimulatedConsole,
    power: ShellGuest['power'],
  ) {
    this.hostname = hostname;
    this.files = files;
    this.power = power;
    this.#memory_bytes = memory_mib * MIB;
    void this.#serveConsole(console);
  }

  /** Aborts when the boot ends. */
  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  end(): void {
    this.#ended.abort(new Error('the guest has ended'));
    this.#http.close();
    for (const each of this.#listeners.values()) each.close();
  }

  /** A connection to a port; null: nothing listens. */
  connect(port: number): Duplex | null {
    const [here, there] = duplexPair();
    if (port === ECHO_PORT) there.pipe(there);
    else if (HTTP_PORTS.includes(port)) this.#http.emit('connection', there);
    else return null;
    for (const side of [here, there]) side.on('error', () => side.destroy());
    this.ended.addEventListener('abort', () => here.destroy());
    return here;
  }

  /** Where a program of this machine, such as the ingress, reaches the port; null: nothing listens. */
  async listen(port: number): Promise<string | null> {
    if (port !== ECHO_PORT && !HTTP_PORTS.includes(port)) return null;
    const server = this.#listeners.get(port) ?? createServer();
    if (!this.#listeners.has(port)) {
      this.#listeners.set(port, server);
      server.on('connection', (socket) => {
        socket.on('error', () => socket.destroy());
        const guest = this.connect(port);
        if (guest) socket.pipe(guest).pipe(socket);
      });
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject);
        server.listen(0, PORTS_ADDRESS, resolve);
      });
    }
    const address = server.address();
    return address !== null && typeof address === 'object' ? `${PORTS_ADDRESS}:${address.port}` : null;
  }

  /** Made up, and different at each time, so that charts have something to show. */
  sample(): VmSample {
    const seconds = (performance.now() - this.#began_ms) / 1_000;
    const wave = 0.5 + 0.5 * Math.sin(seconds / 60);
    const used = Math.round(this.#memory_bytes * (0.2 + 0.3 * wave));
    return {
      at: rfc3339(new Date()),
      cpu_seconds: seconds * 0.1,
      memory: { host_bytes: used + 32 * MIB, used_bytes: used, total_bytes: this.#memory_bytes },
      disk: {
        read_bytes: Math.round(seconds) * 4096,
        written_bytes: Math.round(seconds) * 8192,
        read_operations: Math.round(seconds),
        write_operations: Math.round(2 * seconds),
      },
      network: { received_bytes: Math.round(seconds) * 1500, sent_bytes: Math.round(seconds) * 500 },
    };
  }

  /** A shell that starts again at its end, as a login does. */
  async #serveConsole(console: SimulatedConsole): Promise<void> {
    const interrupts = new Signal();
    const { signal } = this.#ended;
    const show = (data: Buffer) => console.print(data);
    show(Buffer.from(`[    0.000000] Berth's simulated guest\r\n[    0.000001] ${this.hostname} is up\r\n`));
    while (!signal.aborted) {
      const input = new Input();
      const terminal = new Terminal(input, show, interrupts.notify);
      console.onTyped = (data) => terminal.type(data);
      const write = (_: 1 | 2, data: Buffer | string) => terminal.print(data);
      const process = { guest: this, environment: [], input, write, signal, interrupts };
      await runProgram(process, ['sh']).catch(() => undefined);
    }
    console.onTyped = () => undefined;
    console.endWatchers();
  }
}
