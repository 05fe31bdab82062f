/** The agent's authority for certificates, and which names may have one. Its key is nowhere else. */
import { createHash } from 'node:crypto';
import type { SecretsAuthority } from '../../agent-api/secret-types.ts';
import type { LeafCertificates } from './leaf-certificates.ts';
import { coversHost, type GuestSecret } from './placeholders.ts';

export class CertificateSource {
  #authority: SecretsAuthority | null = null;
  #leafs: Promise<LeafCertificates> | null = null;
  #hosts: readonly string[] = [];
  /** Tells this authority from another; null: there is none. */
  fingerprint: string | null = null;

  /** Returns whether it is the same as before. */
  replace(authority: SecretsAuthority | null, secrets: readonly GuestSecret[]): boolean {
    this.#hosts = [...new Set(secrets.flatMap(({ hosts }) => hosts))];
    const before = this.#authority;
    if (before?.certificate === authority?.certificate && before?.private_key === authority?.private_key)
      return true;
    this.#authority = authority;
    this.#leafs = null;
    this.fingerprint = authority && createHash('sha256').update(authority.certificate).digest('hex');
    return false;
  }

  /** In PEM; null: no secret has this name, or there is no authority. @throws when the authority cannot be used */
  async make(name: string, public_key: string): Promise<string | null> {
    if (this.#authority === null || !coversHost(this.#hosts, name)) return null;
    const authority = this.#authority;
    this.#leafs ??= import('./leaf-certificates.ts').then(
      ({ LeafCertificates }) => new LeafCertificates(authority),
    );
    return (await this.#leafs).make(name, public_key);
  }
}
