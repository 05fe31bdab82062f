/**
 * The control plane's certificate for hosts of the fleet: self-signed, created once by openssl. Each host pins it by the
 * fingerprint in its join token.
 */
import { existsSync } from 'node:fs';
import { chmod, rename } from 'node:fs/promises';
import type { Paths } from '../config/paths.ts';
import { lastLines, runCommand } from './run-command.ts';
import { StartError } from './start-error.ts';

const DAYS = 36_500;

type CertificatePaths = Pick<Paths, 'hosts_tls_key' | 'hosts_tls_cert'>;

export async function ensureHostsCertificate({
  hosts_tls_key,
  hosts_tls_cert,
}: CertificatePaths): Promise<void> {
  // openssl writes the key first, so a certificate without its key means that the key was lost.
  if (existsSync(hosts_tls_cert)) {
    if (existsSync(hosts_tls_key)) return;
    throw new StartError(
      `${hosts_tls_key} is missing, and hosts trust only its certificate: restore it from a backup`,
    );
  }
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', hosts_tls_key];
  const { code, stderr } = await runCommand('openssl', [
    ...['req', '-x509', ...key, '-out', `${hosts_tls_cert}.new`],
    ...['-days', String(DAYS), '-subj', '/CN=berth control plane'],
  ]);
  if (code !== 0) throw new StartError(`openssl could not make a certificate: ${lastLines(stderr)}`, 1);
  await chmod(hosts_tls_key, 0o600);
  await rename(`${hosts_tls_cert}.new`, hosts_tls_cert);
}
