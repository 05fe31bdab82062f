/** Asks the OpenID provider about each user whose last answer is getting old. */
import { checkDueIdentity } from '../accounts/check-identity.ts';
import type { OidcContext } from '../accounts/oidc-context.ts';
import { ProviderError } from '../auth/oidc/provider.ts';
import type { Log } from '../lib/log.ts';

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
