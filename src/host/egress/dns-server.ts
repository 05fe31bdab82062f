/**
 * The guests' DNS server, over UDP and TCP. A VM is known by its address; others get no answer. A guest that does not take its answers
 * costs no memory: over TCP its next question waits until it has, over UDP an answer is dropped.
 */
import type { Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import type { Server, Socket } from 'node:net';
import { endAfterFault } from '../../shared/contain.ts';
import { answerQuery } from './answer-query.ts';
import type { Guest } from './guest.ts';

const MESSAGE_MAX_BYTES = 4_096;
const TCP_IDLE_MS = 10_000;
/** Answers over UDP that the kernel has not taken yet, of all guests. */
const UDP_WAITING_BYTES = 1024 * 1024;

export type FindGuest = (address: string | undefined) => Guest | undefined;

export function serveUdp(socket: UdpSocket, findGuest: FindGuest): void {
  socket.on('message', (message, { address, port }) => {
    const guest = findGuest(address);
    // A packet may come from port 0, to which none can be sent.
    if (!guest || message.length > MESSAGE_MAX_BYTES || port === 0) return;
    answerQuery(guest, message, true)
      .then((answer) => {
        if (answer && socket.getSendQueueSize() < UDP_WAITING_BYTES)
          socket.send(answer, port, address, () => undefined);
      })
      .catch(endAfterFault());
  });
}

export function serveTcp(server: Server, findGuest: FindGuest, idle_ms = TCP_IDLE_MS): void {
  server.on('connection', (socket) => {
    socket.on('error', () => socket.destroy());
    const guest = findGuest(socket.remoteAddress);
    if (guest) void answerStream(socket, guest, idle_ms).catch(() => socket.destroy());
    else socket.destroy();
  });
}

/** One query after the other; each has its length in front (RFC 7766). */
async function answerStream(socket: Socket, guest: Guest, idle_ms: number): Promise<void> {
  const release = guest.hold({ isPermitted: () => true, cut: () => socket.destroy() });
  if (!release) return void socket.destroy();
  const ended = new AbortController();
  socket.once('close', () => {
    release();
    ended.abort();
  });
  socket.setTimeout(idle_ms, () => socket.destroy());
  let waiting = Buffer.alloc(0);
  for await (const chunk of socket) {
    waiting = Buffer.concat([waiting, chunk as Buffer]);
    while (waiting.length >= 2) {
      const length = waiting.readUInt16BE(0);
      if (length > MESSAGE_MAX_BYTES) return void socket.destroy();
      if (waiting.length < 2 + length) break;
      const answer = await answerQuery(guest, waiting.subarray(2, 2 + length), false);
      waiting = waiting.subarray(2 + length);
      if (answer) {
        const size = Buffer.alloc(2);
        size.writeUInt16BE(answer.length, 0);
        if (!socket.write(Buffer.concat([size, answer])))
          await once(socket, 'drain', { signal: ended.signal });
      }
    }
  }
  socket.end();
}
