/** Makes certificates of servers for tests, valid or not. */
import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import {
  BasicConstraintsExtension,
  PemConverter,
  SubjectAlternativeNameExtension,
  X509Certificate,
  X509CertificateGenerator,
} from '@peculiar/x509';
import type { SecretsAuthority } from '../../src/protocol/host-types.ts';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
const DAY_MS = 86_400_000;

/** Key and certificate of a server, in PEM. `by` null: it signs itself. */
export async function serverCertificate(
  name: string,
  by: SecretsAuthority | null,
  not_after_ms = Date.now() + DAY_MS,
): Promise<{ key: string; cert: string }> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const signingKey = by
    ? await webcrypto.subtle.importKey('pkcs8', PemConverter.decodeFirst(by.private_key), ALGORITHM, false, [
        'sign',
      ])
    : keys.privateKey;
  const certificate = await X509CertificateGenerator.create(
    {
      subject: [{ CN: [name] }],
      issuer: by ? new X509Certificate(by.certificate).subjectName : [{ CN: [name] }],
      notBefore: new Date(not_after_ms - 3 * DAY_MS),
      notAfter: new Date(not_after_ms),
      signingAlgorithm: ALGORITHM,
      publicKey: keys.publicKey,
      signingKey,
      extensions: [
        new BasicConstraintsExtension(false, undefined, true),
        new SubjectAlternativeNameExtension([{ type: 'dns', value: name }]),
      ],
    },
    webcrypto,
  );
  const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  return { key: PemConverter.encode(pkcs8, 'PRIVATE KEY'), cert: certificate.toString('pem') };
}
