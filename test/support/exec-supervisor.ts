/**
 * A test double of the exec supervisor in a guest: a server at the socket of a machine's port for execs. The test
 * decides what it says.
 */
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import type { TestContext } from 'node:test';
import { FROM_GUEST, TO_GUEST } from '../../src/host/execs/exec-channel.ts';
import { present } from '../../src/shared/assert.ts';

const ID_BYTES = 26;

/** A frame of the supervisor. */
export function fromGuest(type: string, exec = '', payload: Buffer = Buffer.alloc(0)): Buffer {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(1 + ID_BYTES + payload.length);
  return Buffer.concat([length, Buffer.from(type + exec.padEnd(ID_BYTES, '\0'), 'latin1'), payload]);
}

/** Frames to the guest, without their bytes of length; none of these has an escaped byte that is compared. */
function* toGuest(chunk: Buffer): Generator<{ type: string; exec: string; payload: Buffer }> {
  for (const part of chunk.toString('latin1').split('\x7e').filter(Boolean)) {
    const plain = part.replaceAll('\x7d\x5e', '\x7e').replaceAll('\x7d\x5d', '\x7d');
    const exec = plain.slice(5, 5 + ID_BYTES);
    yield { type: plain.charAt(4), exec, payload: Buffer.from(plain.slice(5 + ID_BYTES), 'latin1') };
  }
}

export interface Supervisor {
  /** How many hosts have greeted it. */
  readonly greetings: number;
  say(...frames: readonly Buffer[]): void;
  /** Its last frames, and the end of its machine. */
  end(last: Buffer): void;
}

/** It starts what it is asked for. `more`: what it says after each greeting, before its list is complete. */
export async function supervisorAt(
  t: Pick<TestContext, 'after'>,
  path: string,
  more: readonly Buffer[] = [],
): Promise<Supervisor> {
  let line: Socket | undefined;
  let greetings = 0;
  const server = createServer((socket) => {
    line = socket;
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      for (const { type, exec, payload } of toGuest(chunk)) {
        const session = Buffer.from('a'.repeat(64));
        if (type === TO_GUEST.hello) {
          greetings += 1;
          const hello = fromGuest(FROM_GUEST.hello, '', session);
          socket.write(Buffer.concat([payload, hello, ...more, fromGuest(FROM_GUEST.all_listed)]));
        }
        if (type === TO_GUEST.start) socket.write(fromGuest(FROM_GUEST.started, exec));
      }
    });
  }).listen(path);
  t.after(() => server.close());
  await once(server, 'listening');
  return {
    get greetings() {
      return greetings;
    },
    say: (...frames) => void present(line, 'connection').write(Buffer.concat(frames)),
    end: (last) => void present(line, 'connection').end(last),
  };
}
