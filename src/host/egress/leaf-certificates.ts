/**
 * Makes the certificates that the egress proxy shows to guests when it intercepts their TLS connections: signed by an
 * instance's authority, for names that a secret covers. The authority's private key stays in this process; the private key
 * of a certificate stays in the proxy. This file is imported on first use, because its library takes a while to load.
 */
import 'reflect-metadata';
import { webcrypto } from 'node:crypto';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PemConverter,
  SubjectAlternativeNameExtension,
  X509Certificate,
  X509CertificateGenerator,
} from '@peculiar/x509';
import { LEAF_AHEAD_MS, LEAF_BACKDATED_MS } from '../../protocol/egress-proxy-messages.ts';
import type { SecretsAuthority } from '../../protocol/host-types.ts';

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };

export class LeafCertificates {
  readonly #certificate: X509Certificate;
  readonly #key: Promise<webcrypto.CryptoKey>;

  /** @throws when it cannot be read */
  constructor({ certificate, private_key }: SecretsAuthority) {
    this.#certificate = new X509Certificate(certificate);
    const pkcs8 = PemConverter.decodeFirst(private_key);
    this.#key = webcrypto.subtle.importKey('pkcs8', pkcs8, ALGORITHM, false, ['sign']);
    this.#key.catch(() => undefined);
  }

  /** In PEM. `public_key`: SubjectPublicKeyInfo, base64. @throws when the key is none */
  async make(name: string, public_key: string): Promise<string> {
    const spki = Buffer.from(public_key, 'base64');
    const publicKey = await webcrypto.subtle.importKey('spki', spki, ALGORITHM, true, ['verify']);
    const now = Date.now();
    const certificate = await X509CertificateGenerator.create(
      {
        // A common name has at most 64 characters, and no client needs one.
        subject: [{ O: ['Berth'] }],
        issuer: this.#certificate.subjectName,
        notBefore: new Date(now - LEAF_BACKDATED_MS),
        notAfter: new Date(now + LEAF_AHEAD_MS),
        signingAlgorithm: ALGORITHM,
        publicKey,
        signingKey: await this.#key,
        extensions: [
          new BasicConstraintsExtension(false, undefined, true),
          new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
          new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
          new SubjectAlternativeNameExtension([{ type: 'dns', value: name }]),
          await AuthorityKeyIdentifierExtension.create(this.#certificate, false, webcrypto),
        ],
      },
      webcrypto,
    );
    return certificate.toString('pem');
  }
}
