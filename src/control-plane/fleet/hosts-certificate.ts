/**
 * Makes and replaces the TLS certificate that all control planes of the installation show to hosts, ingresses and each
 * other, which pin it. So a host that joined through one control plane or a load balancer trusts all others. The first
 * control plane that listens to hosts makes the certificate. The database has it, with its private key sealed.
 *
 * The certificate can be replaced while everything runs (ADR 49). The stages of its successor:
 *
 *   made ── hosts and ingresses are told of it for a minute ──▶ shown by each control plane that starts
 *        ── shown by all control planes that live ──▶ the only one
 */
import { X509Certificate } from 'node:crypto';
import { present } from '../../shared/assert.ts';
import { Sealer } from '../../shared/seal.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { ControlPlane } from './control-plane-store.ts';
import {
  findCertificates,
  type KeptCertificate,
  keepFirstCertificate,
  keepNextCertificate,
  recordCertificateAnnounced,
  replaceCertificate,
} from './control-plane-store.ts';

const BOUND_TO = 'hosts certificate';
/** Hosts and ingresses report every few seconds, and learn of a new certificate then. */
export const ANNOUNCED_SECONDS = 60;

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
  if (kept.next && kept.next.announced_seconds >= ANNOUNCED_SECONDS) return opened(kept.next, root_key);
  if (kept.present) return opened(kept.present, root_key);
  await keepFirstCertificate(tx, await makeSealed(root_key));
  return opened(present((await findCertificates(tx)).present, 'certificate just made'), root_key);
}

/** Makes the next certificate. False: there is one already, or none that it could replace. */
export async function renewCertificate(tx: Tx, root_key: Uint8Array): Promise<boolean> {
  return keepNextCertificate(tx, await makeSealed(root_key));
}

/** The fingerprints that hosts are to trust. Null: there is none. */
export interface Trusted {
  readonly present: string | null;
  readonly next: string | null;
}

/** For a control plane that tells hosts of the next certificate, which takes the other's place here if all of `live` show it. */
export async function followReplacement(db: Db, live: readonly ControlPlane[]): Promise<Trusted> {
  const kept = await findCertificates(db);
  const trusted = {
    present: kept.present && certificateFingerprint(kept.present.certificate),
    next: kept.next && certificateFingerprint(kept.next.certificate),
  };
  if (kept.next === null) return trusted;
  if (live.length === 0 || live.some(({ fingerprint }) => fingerprint !== trusted.next)) {
    await recordCertificateAnnounced(db, kept.next.certificate);
    return trusted;
  }
  await replaceCertificate(db, kept.next.certificate);
  return { present: trusted.next, next: null };
}

export function certificateFingerprint(certificate: string): string {
  return new X509Certificate(certificate).fingerprint256;
}

async function makeSealed(root_key: Uint8Array): Promise<KeptCertificate> {
  const { makeCertificate } = await import('./make-certificate.ts');
  const { certificate, private_key } = await makeCertificate();
  return { certificate, sealed_key: sealerOf(root_key).seal(private_key, BOUND_TO) };
}

function opened({ certificate, sealed_key }: KeptCertificate, root_key: Uint8Array): HostsCertificate {
  const key = present(sealerOf(root_key).open(sealed_key, BOUND_TO), "key of the hosts' certificate");
  return { cert: certificate, key, fingerprint: certificateFingerprint(certificate) };
}

function sealerOf(root_key: Uint8Array): Sealer {
  return new Sealer(root_key, 'berth hosts certificate v1');
}
