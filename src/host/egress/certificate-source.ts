/**
 * Keeps the certificate authorities of this host's VMs, and the names that each may certify, and makes certificates on
 * request (leaf-certificates.ts). The authorities' private keys are nowhere else on this host.
 */
import { createHash } from 'node:crypto';
import { coversHost, type GuestSecret } from '../../protocol/egress-proxy-messages.ts';
import type { SecretsAuthority } from '../../protocol/host-types.ts';
import type { LeafCertificates } from './leaf-certificates.ts';

/** What a VM's certificates are made from. */
export interface Certified {
  readonly authority: SecretsAuthority | undefined;
  readonly secrets: readonly GuestSecret[];
}

interface Known {
  readonly authority: SecretsAuthority;
  readonly hosts: readonly string[];
  leafs: Promise<LeafCertificates> | null;
}

export class CertificateSource {
  #known: ReadonlyMap<string, Known> = new Map();

  /** Takes the authorities of all VMs. */
  replace(guests: readonly Certified[]): void {
    const known = new Map<string, Known>();
    for (const { authority, secrets } of guests) {
      if (!authority) continue;
      const fingerprint = fingerprintOfAuthority(authority);
      const leafs = this.#known.get(fingerprint)?.leafs ?? null;
      known.set(fingerprint, { authority, hosts: secrets.flatMap(({ hosts }) => hosts), leafs });
    }
    this.#known = known;
  }

  /** In PEM; null: the VM of this authority has no secret for this name. @throws when the authority cannot be used */
  async make(fingerprint: string, name: string, public_key: string): Promise<string | null> {
    const known = this.#known.get(fingerprint);
    if (!known || !coversHost(known.hosts, name)) return null;
    known.leafs ??= import('./leaf-certificates.ts').then(
      ({ LeafCertificates }) => new LeafCertificates(known.authority),
    );
    try {
      return await (await known.leafs).make(name, public_key);
    } catch (error) {
      // What failed is tried anew at the next name.
      known.leafs = null;
      throw error;
    }
  }
}

/** Tells an authority from others. */
export function fingerprintOfAuthority({ certificate }: SecretsAuthority): string {
  return createHash('sha256').update(certificate).digest('hex');
}
