/**
 * The server of egress.ts: `egress-server.ts PORT`. It answers a ClientHello with one byte, since a proxy passes nothing behind a hello
 * before the server's first word. Behind the hello, a line says what to do: up, down MIB, echo.
 */
import { createServer, type Socket } from 'node:net';

const MIB = Buffer.alloc(2 ** 20, 'x');
const RECORD_HEADER_BYTES = 5;

createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
  socket.on('error', () => socket.destroy());
  let received = Buffer.alloc(0);
  let answered = false;
  socket.on('data', function read(chunk: Buffer) {
    received = Buffer.concat([received, chunk]);
    if (received.length < RECORD_HEADER_BYTES) return;
    const begins = RECORD_HEADER_BYTES + received.readUInt16BE(3);
    if (!answered && received.length >= begins) answered = socket.write('!');
    const ends = received.indexOf('\n', begins);
    if (ends < 0) return;
    socket.off('data', read);
    const [command = '', count] = received.toString('latin1', begins, ends).split(' ');
    const rest = received.subarray(ends + 1);
    if (command === 'echo') {
      socket.write(rest);
      socket.pipe(socket);
    } else if (command === 'up') socket.on('data', () => undefined).on('end', () => socket.end('.'));
    else void send(socket, Number(count));
  });
}).listen(Number(process.argv[2]), () => process.stdout.write('ready\n'));

async function send(socket: Socket, mib: number): Promise<void> {
  for (let each = 0; each < mib; each++)
    if (!socket.write(MIB)) await new Promise((resolve) => socket.once('drain', resolve));
  socket.end();
}
