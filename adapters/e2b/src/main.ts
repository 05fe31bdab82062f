#!/usr/bin/env node
/**
 * The program `berth-e2b` (docs/e2b.md): reads the settings, starts the adapter's server, and ends at SIGINT or
 * SIGTERM.
 */
import type { AddressInfo } from 'node:net';
import { parseArgs } from 'node:util';
import { reportThrows } from '../../../src/shared/contain.ts';
import { Adapter } from './adapter-server.ts';
import { readKey } from './sandbox.ts';

const USAGE = `Usage: berth-e2b [--listen 127.0.0.1:7420] [--domain DOMAIN] [--key-file FILE]

BERTH_URL      Berth's address; http://127.0.0.1:7400 if unset
BERTH_API_KEY  the adapter's own API key: it ends the sandboxes of its organisation in time, and opens their ports
`;

const write = (line: string) => process.stderr.write(`berth-e2b: ${line}\n`);

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      listen: { type: 'string', default: '127.0.0.1:7420' },
      domain: { type: 'string' },
      'key-file': { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  });
  if (values.help) return void process.stdout.write(USAGE);
  const [, host = '', port = ''] = /^\[?([^\]]*)\]?:(\d+)$/.exec(values.listen) ?? [];
  if (port === '') throw new Error(`--listen ${values.listen} is not ADDRESS:PORT.`);
  const api_key = process.env['BERTH_API_KEY'];
  if (!api_key) throw new Error('Set BERTH_API_KEY: an API key that may end sandboxes and open their ports.');
  const adapter = new Adapter({
    berth_url: process.env['BERTH_URL'] ?? 'http://127.0.0.1:7400',
    api_key,
    key: readKey(values['key-file']),
    domain: values.domain ?? `localhost:${port}`,
    log: write,
  });
  reportThrows((fault) => write(`${fault.stack}`));
  await adapter.start();
  await new Promise<void>((resolve, reject) => {
    adapter.server.once('error', reject).listen(Number(port), host, resolve);
  });
  const { port: listening } = adapter.server.address() as AddressInfo;
  write(`listens on ${host}:${listening}`);
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => adapter.close());
}

main().catch((error: unknown) => {
  write(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
});
