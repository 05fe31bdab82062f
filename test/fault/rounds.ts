/**
 * Random faults: node test/fault/rounds.ts [ROUNDS [SEED [s3]]], by default 200 rounds. Prints one line per round and a summary; a
 * failure prints the seed, which repeats its choices. With `s3` the object store is a bucket of a real S3 server, which fails
 * too. `test/support/kill-rounds.ts` defines a round. `npm test` runs a few.
 */
import { GuestInstance } from '../support/guest-instance.ts';
import { Installation } from '../support/installation.ts';
import { KillRounds } from '../support/kill-rounds.ts';
import { bucketSettings, S3Server } from '../support/s3-server.ts';
import { ToxicProxy } from '../support/toxic-proxy.ts';

const count = Number(process.argv[2] ?? 200);
const seed = Number(process.argv[3] ?? Date.now() % 1_000_000);
const print = (line: string) => process.stdout.write(`${line}\n`);
print(`seed ${seed}`);
await using cleanup = new AsyncDisposableStack();
let store: ToxicProxy | null = null;
let settings = {};
if (process.argv[4] === 's3') {
  const server = await S3Server.start();
  cleanup.defer(() => server.close());
  const proxy = await ToxicProxy.open(server.port);
  cleanup.defer(() => proxy.cut());
  store = proxy;
  settings = bucketSettings(await server.bucket(proxy.endpoint));
}
const berth = await Installation.start({ settings });
cleanup.defer(() => berth.dispose());
try {
  await berth.client.takeKey();
  using rounds = new KillRounds(berth, await GuestInstance.running(berth, 'rounds'), seed, store);
  for (let number = 1; number <= count; number++) {
    const began = performance.now();
    const did = await rounds.once();
    print(`${number}: ${did} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
  }
  const { rounds: done, records, receipts, boots, recovered } = rounds.total;
  print(
    `${done} rounds with seed ${seed}: ${records} fsyncs and ${receipts} receipts held over ${boots} boots, ${recovered} of which said recovered`,
  );
} catch (error) {
  print(`FAILED with seed ${seed}`);
  print(berth.output.split('\n').slice(-60).join('\n'));
  throw error;
}
