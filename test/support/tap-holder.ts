/** Holds a TAP device in QEMU's place: a line of standard input is a frame to send, a line of its output one received, in hexadecimal. */
import { read, writeSync } from 'node:fs';
import { createInterface } from 'node:readline';

const FD = 5;
/** struct virtio_net_hdr: no offloads. */
const HEADER = Buffer.alloc(10);
const WAIT_MS = 1;

const buffer = Buffer.alloc(65_536);
function receive(): void {
  read(FD, buffer, 0, buffer.length, null, (error, bytes) => {
    if (error && error.code !== 'EAGAIN') throw error;
    if (error) return setTimeout(receive, WAIT_MS);
    process.stdout.write(`${buffer.subarray(HEADER.length, bytes).toString('hex')}\n`);
    receive();
  });
}
receive();
createInterface({ input: process.stdin })
  .on('line', (line) => writeSync(FD, Buffer.concat([HEADER, Buffer.from(line, 'hex')])))
  .on('close', () => process.exit());
