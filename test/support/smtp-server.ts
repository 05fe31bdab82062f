/** A minimal SMTP server (RFC 5321, AUTH PLAIN of RFC 4954) on a free loopback port that records mail. */
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import type { TestContext } from 'node:test';

export interface Received {
  readonly from: string;
  readonly to: readonly string[];
  /** Head and text, with CRLF. */
  readonly message: string;
  /** Decoded: NUL, user, NUL, password. */
  readonly login: string | null;
}

/** `silent_after`: it stops answering at this command. `refuses`: its answer to a recipient. */
export async function startSmtpServer(
  t: TestContext,
  { silent_after, refuses }: { readonly silent_after?: string; readonly refuses?: string } = {},
) {
  const received: Received[] = [];
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket.once('close', () => sockets.delete(socket)).on('error', () => undefined));
    void talk(socket);
  });
  const talk = async (socket: Socket) => {
    const say = (line: string) => socket.write(`${line}\r\n`);
    let [from, to, login, data]: [string, string[], string | null, string[] | null] = ['', [], null, null];
    say('220 test');
    for await (const line of createInterface({ input: socket, crlfDelay: Number.POSITIVE_INFINITY })) {
      if (data && line !== '.') {
        data.push(line.replace(/^\./, ''));
        continue;
      }
      const command = data ? '.' : (line.split(' ')[0] ?? '').toUpperCase();
      if (command === silent_after) return;
      if (data) {
        received.push({ from, to, login, message: data.join('\r\n') });
        [to, data] = [[], null];
        say('250 taken');
      } else if (command === 'EHLO') say('250-test\r\n250-8BITMIME\r\n250 AUTH PLAIN');
      else if (command === 'AUTH') {
        login = Buffer.from(line.split(' ')[2] ?? '', 'base64').toString();
        say('235 known');
      } else if (command === 'MAIL') {
        from = addressIn(line);
        say('250 from it');
      } else if (command === 'RCPT') {
        to.push(addressIn(line));
        say(refuses ?? '250 to it');
      } else if (command === 'DATA') {
        data = [];
        say('354 go on');
      } else if (command === 'QUIT') {
        say('221 bye');
        socket.end();
      } else say('250 well');
    }
  };
  server.listen({ host: '127.0.0.1', port: 0 });
  await once(server, 'listening');
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { received, port: (server.address() as AddressInfo).port };
}

const addressIn = (line: string) => /<(.*?)>/.exec(line)?.[1] ?? '';
