/**
 * Makes the self-signed certificate that hosts pin. Imported only when it is needed, because its library loads slowly.
 */
import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import { PemConverter, X509CertificateGenerator } from '@peculiar/x509';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
/** Who pins a certificate does not ask for its names and dates. */
const NAME = [{ CN: ['berth control plane'] }];
const YEARS = 100;
/** A host's clock may be behind. */
const BACKDATED_MS = 86_400_000;

/** PEM, both. */
export async function makeCertificate(): Promise<{ certificate: string; private_key: string }> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const not_after = new Date();
  not_after.setUTCFullYear(not_after.getUTCFullYear() + YEARS);
  const certificate = await X509CertificateGenerator.createSelfSigned(
    {
      name: NAME,
      notBefore: new Date(Date.now() - BACKDATED_MS),
      notAfter: not_after,
      signingAlgorithm: ALGORITHM,
      keys,
    },
    webcrypto,
  );
  const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  return {
    certificate: `${certificate.toString('pem')}\n`,
    private_key: `${PemConverter.encode(pkcs8, 'PRIVATE KEY')}\n`,
  };
}
