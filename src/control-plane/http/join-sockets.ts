/** Passes the bytes of a WebSocket's messages to a stream, and back. Neither side reads faster than the other takes. */
import type { Duplex } from 'node:stream';
import { type RawData, WebSocket } from 'ws';
import { writeOrPause } from '../../shared/write-or-pause.ts';

/** Close codes (RFC 6455, section 7.4.1, and its registry); `output_lost` is our own. */
export const CLOSE = { over: 1000, going_away: 1001, revoked: 1008, output_lost: 4409 } as const;
/** The text message that ends one direction of a half-open stream. */
const END = 'end';
const BUFFER_BYTES = 256 * 1024;

/**
 * @param half_open a text message `end` ends the direction of its sender; binary messages are the bytes. Else all messages
 * are bytes, and the end of the stream closes the WebSocket
 */
export function splice(
  client: WebSocket,
  line: Duplex,
  { name, half_open }: { readonly name: string; readonly half_open: boolean },
): void {
  line.on('data', (chunk: Buffer) => {
    if (client.readyState !== WebSocket.OPEN) return;
    client.send(chunk, { binary: true }, () => {
      if (line.isPaused() && client.bufferedAmount < BUFFER_BYTES) line.resume();
    });
    if (client.bufferedAmount >= BUFFER_BYTES) line.pause();
  });
  line.on('error', () => line.destroy());
  line.on('end', () => {
    if (half_open && client.readyState === WebSocket.OPEN) client.send(END);
  });
  line.on('close', () => client.close(CLOSE.over, `the ${name} has ended`));
  client.on('message', (data: RawData, is_binary: boolean) => {
    // After our close the peer may send for another half minute, until it answers.
    if (client.readyState !== WebSocket.OPEN || line.writableEnded) return;
    if (half_open && !is_binary) {
      if (String(data) === END) line.end();
      return;
    }
    writeOrPause(client, line, data as Buffer);
  });
  client.on('error', () => client.terminate());
  client.on('close', () => line.destroy());
}
