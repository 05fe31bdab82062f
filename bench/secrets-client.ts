/**
 * The guest's side of secrets.ts: `secrets-client.ts ORIGIN PLACEHOLDER requests CONNECTIONS MS`, `… down MIB` or `… connect COUNT`.
 * Each request has the placeholder in a field. Prints JSON: a Load; or the seconds that it took.
 */
import { Client } from 'undici';
import { load } from './load.ts';

const [, , origin = '', placeholder = '', mode = '', count = '', duration_ms = ''] = process.argv;
const headers = { authorization: `Bearer ${placeholder}` };

async function ask(client: Client, path: string): Promise<number> {
  const { statusCode, body } = await client.request({ path, method: 'GET', headers });
  if (statusCode !== 200) throw new Error(`${statusCode} ${await body.text()}`);
  let bytes = 0;
  for await (const part of body) bytes += (part as Buffer).length;
  return bytes;
}

async function down(mib: number): Promise<number> {
  const client = new Client(origin);
  await ask(client, '/warm');
  const began_ms = performance.now();
  if ((await ask(client, `/big?mib=${mib}`)) !== mib * 2 ** 20) throw new Error('the body is not whole');
  const took_ms = performance.now() - began_ms;
  await client.close();
  return took_ms / 1000;
}

async function connect(times: number): Promise<number> {
  const began_ms = performance.now();
  for (let each = 0; each < times; each++) {
    const client = new Client(origin);
    await ask(client, '/new');
    await client.close();
  }
  return (performance.now() - began_ms) / 1000;
}

async function requests(connections: number) {
  const target = { origin, method: 'GET', requests: [{ path: '/', headers }], status: 200 } as const;
  return load(target, connections, Number(duration_ms), new AbortController().signal);
}

const jobs = { requests, down, connect };
const measured = await jobs[mode as keyof typeof jobs](Number(count));
process.stdout.write(JSON.stringify(measured));
