/** Asks the OpenID provider about each user whose last answer is getting old. */

import type { Log } from '../../shared/log.ts';
import { checkDueIdentity } from './check-identity.ts';
import { ProviderError } from './oidc/provider.ts';
import type { OidcContext } from './oidc-context.ts';

/** A provider that fails so often is left alone until the next run. */
const MOST_FAILURES = 3;

export async function checkIdentities(context: OidcContext, log: Log, signal: AbortSignal): Promise<void> {
  let failures = 0;
  while (!signal.aborted && failures < MOST_FAILURES) {
    try {
      const checked = await checkDueIdentity(context);
      if (checked === null) return;
      if (checked.outcome === 'followed' && !checked.groups_known) {
        log.warn({ provider: context.provider.name }, 'a provider does not tell the groups of a user');
      }
    } catch (error) {
      if (!(error instanceof ProviderError)) throw error;
      failures += 1;
      log.warn(
        { provider: context.provider.name, kind: error.kind, problem: error.message },
        'no check of a user at the provider',
      );
    }
  }
}
