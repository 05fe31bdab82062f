/**
 * The certificate that all control planes of the installation show to hosts, ingresses and each other, which pin it. It is made
 * when the first control plane listens to hosts; its key is sealed in the database. So a host that joined by one control plane,
 * or by a balancer, knows every other one.
 */
import { X509Certificate } from 'node:crypto';
import type { Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import { Sealer } from '../lib/seal.ts';
import { findHostsCertificate, keepHostsCertificate } from './installation-store.ts';

const BOUND_TO = 'hosts certificate';

export interface HostsCertificate {
  /** PEM. */
  readonly cert: string;
  /** PEM. */
  readonly key: string;
  /** In Node's form: upper-case hexadecimal bytes with colons. */
  readonly fingerprint: string;
}

/** Runs after a control plane has made the root key. */
export async function hostsCertificate(tx: Tx, root_key: Uint8Array): Promise<HostsCertificate> {
  const sealer = new Sealer(root_key, 'berth hosts certificate v1');
  let kept = await findHostsCertificate(tx);
  if (kept === null) {
    const { makeCertificate } = await import('./make-certificate.ts');
    const { certificate, private_key } = await makeCertificate();
    await keepHostsCertificate(tx, { certificate, sealed_key: sealer.seal(private_key, BOUND_TO) });
    kept = present(await findHostsCertificate(tx), 'certificate just made');
  }
  const key = present(sealer.open(kept.sealed_key, BOUND_TO), "key of the hosts' certificate");
  return { cert: kept.certificate, key, fingerprint: new X509Certificate(kept.certificate).fingerprint256 };
}
