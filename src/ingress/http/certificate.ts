/** The certificate of HTTP ports: read at the start, and again when its files change. A pair that does not fit is not used. */
import { readFile, stat } from 'node:fs/promises';
import { createSecureContext } from 'node:tls';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { Certificate } from './listener.ts';

const LOOK_MS = 2_000;

export interface CertificateFiles {
  readonly cert_path: string;
  readonly key_path: string;
}

/** @throws what is wrong with the files */
export async function readCertificate({ cert_path, key_path }: CertificateFiles): Promise<Certificate> {
  const [cert, key] = await Promise.all([readFile(cert_path), readFile(key_path)]);
  createSecureContext({ cert, key });
  return { cert, key };
}

/** Calls `changed` for each new pair, until `signal` aborts. */
export async function followCertificate(
  files: CertificateFiles,
  { changed, log, signal }: { changed: (certificate: Certificate) => void; log: Log; signal: AbortSignal },
): Promise<void> {
  let seen = await versionOf(files);
  while (await pause(LOOK_MS, signal)) {
    const version = await versionOf(files);
    if (version === seen) continue;
    try {
      changed(await readCertificate(files));
      log.info('the certificate of HTTP ports was read again');
    } catch (error) {
      // The other file may be written next.
      log.error(
        { reason: messageOf(error) },
        'the new certificate of HTTP ports cannot be used; the last stays',
      );
    }
    seen = version;
  }
}

/** Changes when a file is written or replaced. */
async function versionOf({ cert_path, key_path }: CertificateFiles): Promise<string> {
  const all = await Promise.all(
    [cert_path, key_path].map((path) => stat(path, { bigint: true }).catch(() => null)),
  );
  return all
    .map((each) => (each ? `${each.dev}.${each.ino}.${each.size}.${each.mtimeNs}` : 'none'))
    .join(' ');
}
