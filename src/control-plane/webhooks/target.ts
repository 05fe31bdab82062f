import type { KeyObject } from 'node:crypto';
import type { Sealer } from '../../shared/seal.ts';
import type { Receiver } from './sender-store.ts';
import { signingKey } from './sign.ts';

/** Where a webhook's deliveries go and what signs them, when its row was last read. */
export interface Target {
  /** The webhook's URL, as its row has it. */
  readonly address: string;
  readonly url: URL | string;
  readonly keys: readonly KeyObject[];
}

/** @throws Error when a secret does not open */
export function targetOf({ id, url, secret, previous_secret }: Receiver, secrets: Sealer): Target {
  const keys = [secret, previous_secret].flatMap((sealed) => {
    if (sealed === null) return [];
    const plain = secrets.open(sealed, id);
    if (plain === null) throw new Error('a webhook secret does not open with the root key');
    return [signingKey(plain)];
  });
  return { address: url, url: URL.parse(url) ?? '', keys };
}
