import type { OutgoingMessage } from 'node:http';

/**
 * Sends the fields of an HTTP/1.1 message before its body. Node's flushHeaders() would write them as UTF-8, and so change all
 * bytes beyond ASCII.
 */
export function sendHead(message: OutgoingMessage): void {
  message.write(Buffer.alloc(0));
}
