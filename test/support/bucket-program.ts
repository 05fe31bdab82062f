/**
 * The S3 server in a machine of its own (machine.ts): opens it to other machines at a port, and prints the settings of a bucket
 * in one line. `node bucket-program.ts ORIGIN PORT`; ends with the machine.
 */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { bucketSettings, S3Server } from './s3-server.ts';

const [origin = '', port] = process.argv.slice(2);
const store = await S3Server.start();
const server = createServer((socket) => {
  const inner = connect({ host: '127.0.0.1', port: store.port });
  for (const [one, other] of [
    [socket, inner],
    [inner, socket],
  ] as const) {
    one.on('error', () => other.destroy());
    one.pipe(other);
  }
});
server.listen(Number(port), '0.0.0.0');
await once(server, 'listening');
process.stdout.write(`${JSON.stringify(bucketSettings({ ...(await store.bucket()), endpoint: origin }))}\n`);
