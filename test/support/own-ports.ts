/**
 * Reserves loopback ports for the caller before anything listens on them. Test files run concurrently, and without a
 * reservation another file could take a free port before a slow program opens it.
 */
import { createServer, type Server } from 'node:net';

/** Below the kernel's ephemeral ports (ip_local_port_range). */
const FROM = 23_000;
const UP_TO = 32_700;
/** The owner of a run of ports listens on its first one. */
const RUN = 12;

export interface OwnPorts {
  /** The first of the requested number of consecutive ports. */
  readonly first: number;
  readonly release: () => void;
}

export async function ownPorts(count: number): Promise<OwnPorts> {
  if (count >= RUN) throw new RangeError(`${count} ports are more than a run has`);
  for (let attempt = 0; attempt < 1_000; attempt++) {
    const claim = FROM + RUN * Math.floor(Math.random() * ((UP_TO - FROM) / RUN));
    const claimed = await listenOn(claim);
    if (!claimed) continue;
    const ports = Array.from({ length: count }, (_, i) => claim + 1 + i);
    if ((await Promise.all(ports.map(isFree))).every(Boolean)) {
      return { first: claim + 1, release: () => void claimed.close() };
    }
    claimed.close();
  }
  throw new Error('no free ports');
}

/** Reserves one port until this process ends. */
export async function ownPort(): Promise<number> {
  return (await ownPorts(1)).first;
}

/** Undefined when another process listens there. */
function listenOn(port: number): Promise<Server | undefined> {
  return new Promise((resolve) => {
    const server = createServer((socket) => socket.destroy()).unref();
    server.once('error', () => resolve(undefined));
    server.listen({ host: '127.0.0.1', port, exclusive: true }, () => resolve(server));
  });
}

async function isFree(port: number): Promise<boolean> {
  const server = await listenOn(port);
  if (!server) return false;
  await new Promise((resolve) => server.close(resolve));
  return true;
}
