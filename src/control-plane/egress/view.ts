/** A denied destination as the API shows it. */
import { rfc3339 } from '../../shared/clock.ts';
import type { DeniedRow } from './denied-store.ts';

export function deniedView({ at, name, address, port, attempts }: DeniedRow) {
  return {
    at: rfc3339(at),
    ...(name === null ? {} : { name }),
    ...(address === null ? {} : { address }),
    ...(port === 0 ? {} : { port }),
    count: attempts,
  };
}
