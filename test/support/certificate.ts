/** Self-signed certificates, made by openssl. */
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Certificate } from '../../src/ingress/http/listener.ts';
import type { Cleanup } from './cleanup.ts';

const run = promisify(execFile);

export async function certificate(t: Cleanup, name: string): Promise<Certificate> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-cert-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const [key, cert] = [join(folder, 'key'), join(folder, 'cert')];
  await run('openssl', [
    ...['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'],
    ...['-subj', `/CN=${name}`, '-addext', `subjectAltName=DNS:${name}`, '-keyout', key, '-out', cert],
  ]);
  return { key: await readFile(key), cert: await readFile(cert) };
}
