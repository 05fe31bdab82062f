/**
 * Requests to a host of a secret, which the proxy intercepts, beside those of a VM without secrets in mode open, which meet no proxy:
 * a guest, its host and a server, each a network namespace (test/support/secret-lab.ts). Both sides send the placeholder by HTTP/1.1.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { GuestSecret } from '../src/protocol/egress-proxy-messages.ts';
import { SecretLab } from '../test/support/secret-lab.ts';
import { type HostBench, type HostContext, type Measured, measured } from './figure.ts';
import type { Load } from './load.ts';

const CLIENT = join(import.meta.dirname, 'secrets-client.ts');
const HOST = 'api.test';
const PLACEHOLDER = `berth-secret-${'0123456789abcdef'.repeat(2)}`;
const SECRET: GuestSecret = { placeholder: PLACEHOLDER, hosts: [HOST], value: `sk-${'x'.repeat(48)}` };
const OPEN = { mode: 'open', allow: [] } as const;
const SIDES = [
  { name: 'with a secret', secrets: [SECRET] },
  { name: 'mode open', secrets: [] },
] as const;
const CONNECTIONS = [1, 64] as const;
const DURATION_MS = 3_000;
const MIB = 256;
const NEW_CONNECTIONS = 100;

type Values = Map<string, number>;

async function run(context: HostContext): Promise<readonly Measured[]> {
  const lab = await SecretLab.open({ QUIET: '1' });
  const values = new Map<string, { readonly unit: string; readonly of: Map<string, number[]> }>();
  try {
    // Each side shows a certificate of another authority.
    const trusted = join(lab.folder, 'both.pem');
    writeFileSync(
      trusted,
      [lab.trusted, join(lab.folder, 'roots.pem')].map((path) => readFileSync(path)).join(''),
    );
    const client = async (...words: readonly (string | number)[]): Promise<unknown> => {
      context.signal.throwIfAborted();
      const args = [CLIENT, `https://${HOST}`, PLACEHOLDER, ...words.map(String)];
      const child = lab.start(process.execPath, args, { NODE_EXTRA_CA_CERTS: trusted });
      if (!child.stdout) throw new Error('no output');
      return JSON.parse(await text(child.stdout));
    };
    for (let round = 0; round <= context.runs; round++) {
      for (const { name, secrets } of SIDES) {
        await lab.allow(OPEN, secrets);
        for (const [key, value] of await measureSide(client)) {
          context.say(`round ${round}: ${name} ${key} ${value.toFixed(3)}`);
          if (round === 0) continue;
          const [figure = '', unit = ''] = key.split(', ');
          const known = values.get(figure) ?? { unit, of: new Map() };
          known.of.set(name, [...(known.of.get(name) ?? []), value]);
          values.set(figure, known);
        }
      }
    }
  } finally {
    await lab.close();
  }
  const [intercepted, open] = SIDES;
  return [...values].map(([figure, { unit, of }]) =>
    measured({
      ...{ bench: 'secrets', figure, unit, values: of.get(intercepted.name) ?? [], beside: open.name },
      ...{ beside_values: of.get(open.name) ?? [], remark: '' },
    }),
  );
}

/** By figure and unit. */
async function measureSide(
  client: (...words: readonly (string | number)[]) => Promise<unknown>,
): Promise<Values> {
  const values: Values = new Map();
  for (const connections of CONNECTIONS) {
    const { per_second, p50_ms, p99_ms } = (await client('requests', connections, DURATION_MS)) as Load;
    values.set(`requests_${connections}, 1/s`, per_second);
    values.set(`p50_${connections}, ms`, p50_ms);
    values.set(`p99_${connections}, ms`, p99_ms);
  }
  values.set('received_mib_per_second, MiB/s', MIB / ((await client('down', MIB)) as number));
  values.set(
    'connection, ms',
    ((await client('connect', NEW_CONNECTIONS)) as number) * (1000 / NEW_CONNECTIONS),
  );
  return values;
}

export const secretsBench: HostBench = {
  alone: true,
  name: 'secrets',
  summary: 'requests to a host of a secret, through the proxy, beside mode open',
  run,
};
