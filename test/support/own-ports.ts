/**
 * Loopback ports that are the caller's alone for as long as it wants, whether something listens on them yet or not. Test
 * files run beside each other: a port that is only looked for is somebody else's by the time a slow program opens it.
 */
import { createServer, type Server } from 'node:net';

/** Below those that the kernel gives to anybody (ip_local_port_range). */
const FROM = 23_000;
const UP_TO = 32_700;
/** The first of each run is listened on by whoever has the run. */
const RUN = 10;

export interface OwnPorts {
  /** Of as many as were asked for, one after the other. */
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

/** One, until this process ends. */
export async function ownPort(): Promise<number> {
  return (await ownPorts(1)).first;
}

/** Undefined: somebody else does. */
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
