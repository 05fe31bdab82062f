/**
 * What the fleet knows as its store: store-proxy.ts ADDRESS PORT STORE_PORT passes requests on. A line on stdin says how from then
 * on: `wrong` answers every other read wrongly, `right` none. It ends with its parent.
 */
import { createInterface } from 'node:readline';
import { ToxicProxy, wrongAnswers } from '../../support/toxic-proxy.ts';

const [address = '', port, store_port] = process.argv.slice(2);
const proxy = await ToxicProxy.open(Number(store_port), { address, port: Number(port) });
process.stdout.write('ready\n');
for await (const line of createInterface({ input: process.stdin })) {
  if (line === 'wrong') proxy.poison(wrongAnswers);
  else proxy.heal();
}
process.exit();
