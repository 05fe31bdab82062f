/**
 * The certificate that all control planes of the installation show to hosts, ingresses and each other, which pin it. It is made
 * when the first control plane listens to hosts; its key is sealed in the database. So a host that joined by one control plane,
 * or by a balancer, knows every other one. It can be replaced while everything runs (ADR 80):
 *
 *   made ── a minute, in which hosts and ingresses learn of it ──▶ shown by each control plane that starts
 *        ── shown by all that live ──▶ the only one
 */
import { X509Certificate } from 'node:crypto';
import type { Db, Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import { Sealer } from '../lib/seal.ts';
import {
  findCertificates,
  type KeptCertificate,
  keepFirstCertificate,
  keepNextCertificate,
  noteCertificateTold,
  replaceCertificate,
} from './installation-store.ts';
import type { ControlPlane } from './store.ts';

const BOUND_TO = 'hosts certificate';

export interface HostsCertificate {
  /** PEM. */
  readonly cert: string;
  /** PEM. */
  readonly key: string;
  /** In Node's form: upper-case hexadecimal bytes with colons. */
  readonly fingerprint: string;
}

/** What a control plane that starts now shows. Runs after a control plane has made the root key. */
export async function hostsCertificate(tx: Tx, root_key: Uint8Array): Promise<HostsCertificate> {
  const kept = await findCertificates(tx);
  if (kept.next?.is_known) return opened(kept.next, root_key);
  if (kept.present) return opened(kept.present, root_key);
  await keepFirstCertificate(tx, await makeSealed(root_key));
  return opened(present((await findCertificates(tx)).present, 'certificate just made'), root_key);
}

/** Makes the next certificate. False: there is one already, or none that it could replace. */
export async function renewCertificate(tx: Tx, root_key: Uint8Array): Promise<boolean> {
  return keepNextCertificate(tx, await makeSealed(root_key));
}

/**
 * For a control plane that tells hosts of it: the fingerprint of the next certificate, which takes the other's place here if all
 * of `live` show it. Null: there is none.
 */
export async function followReplacement(db: Db, live: readonly ControlPlane[]): Promise<string | null> {
  const { next } = await findCertificates(db);
  if (next === null) return null;
  const fingerprint = fingerprintOf(next.certificate);
  if (live.length === 0 || live.some((each) => each.fingerprint !== fingerprint)) {
    if (!next.is_told) await noteCertificateTold(db, next.certificate);
    return fingerprint;
  }
  await replaceCertificate(db, next.certificate);
  return null;
}

export function fingerprintOf(certificate: string): string {
  return new X509Certificate(certificate).fingerprint256;
}

async function makeSealed(root_key: Uint8Array): Promise<KeptCertificate> {
  const { makeCertificate } = await import('./make-certificate.ts');
  const { certificate, private_key } = await makeCertificate();
  return { certificate, sealed_key: sealerOf(root_key).seal(private_key, BOUND_TO) };
}

function opened({ certificate, sealed_key }: KeptCertificate, root_key: Uint8Array): HostsCertificate {
  const key = present(sealerOf(root_key).open(sealed_key, BOUND_TO), "key of the hosts' certificate");
  return { cert: certificate, key, fingerprint: fingerprintOf(certificate) };
}

function sealerOf(root_key: Uint8Array): Sealer {
  return new Sealer(root_key, 'berth hosts certificate v1');
}
