/**
 * The servers in the namespace that outside.ts makes, to which guests connect. On TCP, port 7001 reads everything and
 * then answers a byte, 7002 sends as many MiB as a line asks for, and 7003 closes each connection. On UDP, port 7004
 * echoes.
 */
import { createSocket } from 'node:dgram';
import { createServer, type Socket } from 'node:net';

const MIB = Buffer.alloc(2 ** 20);

function serve(port: number, answer: (socket: Socket) => void): void {
  createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => undefined);
    answer(socket);
  }).listen(port);
}

serve(7001, (socket) => socket.resume().on('end', () => socket.end('.')));
serve(7002, (socket) =>
  socket.once('data', (line) => {
    let left = Number(line.toString('latin1'));
    const more = () => {
      while (left > 0) {
        left -= 1;
        if (!socket.write(MIB)) return socket.once('drain', more);
      }
      return socket.end();
    };
    more();
  }),
);
serve(7003, (socket) => socket.end());
const echo = createSocket('udp4');
echo.on('message', (message, { port, address }) => echo.send(message, port, address));
echo.bind(7004);
process.stdout.write('ready\n');
