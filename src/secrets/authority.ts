/**
 * The installation's certificate authority for intercepted connections. It is made when a host first needs it; if two control
 * planes make one at the same time, the first row stays. Its private key is unencrypted in memory only, here and on hosts.
 */
import type { SecretsAuthority } from '../agent-api/secret-types.ts';
import type { Tx } from '../db/pool.ts';
import { present } from '../lib/assert.ts';
import type { Sealer } from '../lib/seal.ts';
import { findAuthority, insertAuthority } from './store.ts';

const BOUND_TO = 'authority';

export async function secretsAuthority(
  tx: Tx,
  sealer: Sealer,
  public_url: string,
): Promise<SecretsAuthority> {
  const found = await findAuthority(tx);
  if (found) return opened(sealer, found);
  const { makeAuthority } = await import('./make-authority.ts');
  const { certificate, private_key } = await makeAuthority(new URL(public_url).hostname);
  await insertAuthority(tx, { certificate, private_key: sealer.seal(private_key, BOUND_TO) });
  return opened(sealer, present(await findAuthority(tx), 'certificate authority just made'));
}

function opened(
  sealer: Sealer,
  row: NonNullable<Awaited<ReturnType<typeof findAuthority>>>,
): SecretsAuthority {
  const private_key = sealer.open(row.private_key, BOUND_TO);
  if (private_key === null) throw new Error("the certificate authority's key does not open");
  return { certificate: row.certificate, private_key };
}
