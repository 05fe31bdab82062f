/**
 * Makes the certificate authority (ECDSA P-256, 10 years) that signs the certificates which the egress proxy shows to a
 * guest, so that the proxy can put secrets into the guest's TLS requests. Returns the certificate and the private key
 * as PEM, and stores nothing. This file is imported only when an authority is made, because its library loads slowly.
 */
import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import {
  BasicConstraintsExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PemConverter,
  SubjectKeyIdentifierExtension,
  X509CertificateGenerator,
} from '@peculiar/x509';
import type { SecretsAuthority } from '../../protocol/host-types.ts';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
const YEARS = 10;
/** A guest's clock may be a little behind. */
const BACKDATED_MS = 86_400_000;

/** `of`: tells it from others, for people; at most 40 characters, because X.520 allows a common name 64. */
export async function makeAuthority(of: string): Promise<SecretsAuthority> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const now = Date.now();
  const not_after = new Date(now);
  not_after.setUTCFullYear(not_after.getUTCFullYear() + YEARS);
  const certificate = await X509CertificateGenerator.createSelfSigned(
    {
      name: [{ CN: [`Berth secrets of ${of}`] }],
      notBefore: new Date(now - BACKDATED_MS),
      notAfter: not_after,
      signingAlgorithm: ALGORITHM,
      keys,
      extensions: [
        new BasicConstraintsExtension(true, 0, true),
        new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
        await SubjectKeyIdentifierExtension.create(keys.publicKey, false, webcrypto),
      ],
    },
    webcrypto,
  );
  const pkcs8 = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  return {
    certificate: `${certificate.toString('pem')}\n`,
    private_key: `${PemConverter.encode(pkcs8, 'PRIVATE KEY')}\n`,
  };
}
