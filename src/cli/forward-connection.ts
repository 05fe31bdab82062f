/** One connection of `berth forward`: a TCP socket of this machine, and a WebSocket to the server. */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { WebSocket } from 'ws';
import { writeOrPause } from '../shared/streams.ts';

/** The text message that ends one direction. */
const END = 'end';
const BUFFER_BYTES = 256 * 1024;
/** Larger messages are refused by the server. */
const MESSAGE_BYTES = 32 * 1024;
const OVER = 1000;
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
