/**
 * The servers of a network namespace that plays the internet: `egress-internet.ts ADDRESS…`. They accept every
 * connection and datagram, and print a line of JSON for each contact: {protocol, address, port, first}. On port 80 they
 * answer by HTTP, so that a client can send another request.
 */
import { createHash } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';

const TCP_PORTS = [22, 25, 53, 80, 443, 853, 3128, 5432, 8080, 8443];
const UDP_PORTS = [53, 123, 443, 853, 4789, 5000, 5353];

function tell(contact: object): void {
  process.stdout.write(`${JSON.stringify(contact)}\n`);
}

const addresses = process.argv.slice(2);

/** What a TLS server says that wants another ClientHello: its random number tells (RFC 8446, section 4.1.3). */
const RETRY = Buffer.concat([
  Buffer.from('1603030038020000340303', 'hex'),
  createHash('sha256').update('HelloRetryRequest').digest(),
  Buffer.from('00130100000c002b00020304003300020018', 'hex'),
]);

/** The name server has port 53 of another address. */
for (const [port, address] of TCP_PORTS.flatMap((port) =>
  (port === 53 ? addresses : ['::']).map((at) => [port, at] as const),
)) {
  createServer((socket) => {
    const reached = (socket.localAddress ?? '').replace('::ffff:', '');
    tell({ protocol: 'tcp', address: reached, port, first: '' });
    socket.on('error', () => socket.destroy());
    socket.on('data', (bytes) => {
      tell({ protocol: 'tcp', address: reached, port, first: bytes.toString('latin1').slice(0, 2_000) });
      if (bytes.includes('retry.')) return void socket.write(RETRY);
      const said = `REACHED ${reached}:${port}`;
      socket.write(
        port === 80 ? `HTTP/1.1 200 OK\r\nContent-Length: ${said.length}\r\n\r\n${said}` : `${said}\n`,
      );
    });
  }).listen(port, address);
}

for (const address of addresses) {
  for (const port of UDP_PORTS) {
    const socket = createSocket(address.includes(':') ? 'udp6' : 'udp4');
    socket.on('message', (bytes, from) => {
      tell({ protocol: 'udp', address, port, first: bytes.toString('latin1') });
      socket.send(`REACHED ${address}:${port}`, from.port, from.address);
    });
    socket.bind(port, address);
  }
}
tell({ protocol: 'ready' });
