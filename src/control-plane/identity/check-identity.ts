/**
 * Asks the provider again about a user, with the stored refresh token: groups and roles follow. A refused token ends the
 * user's sessions. Without a usable answer nothing changes. The caller has claimed the identity, because most refresh tokens
 * may be used only once.
 */
import type { UserId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { transaction } from '../db/pool.ts';
import type { GroupChange } from '../organisations/follow-groups.ts';
import { organisationsOf } from '../organisations/member-store.ts';
import { applyGroups } from './login-at-provider.ts';
import {
  claimDueIdentity,
  claimIdentityOf,
  type Identity,
  openRefreshToken,
  replaceRefreshToken,
  sealRefreshToken,
} from './oidc/identity-store.ts';
import { type OidcContext, type Proof, ProviderError } from './oidc/provider.ts';
import { deleteOtherSessions } from './store.ts';

export type Checked =
  | { readonly outcome: 'followed'; readonly changes: readonly GroupChange[]; readonly groups_known: boolean }
  /** The provider refuses the token, or has given none. */
  | { readonly outcome: 'sessions_ended'; readonly because: 'refused' | 'no_token'; readonly count: number }
  | { readonly outcome: 'busy' };

/** Of the user whose turn it is; null: no user's. @throws ProviderError without a usable answer */
async function checkDueIdentity(context: OidcContext): Promise<Checked | null> {
  const identity = await claimDueIdentity(context.db, context.provider.issuer);
  return identity === undefined ? null : checkIdentity(context, identity);
}

/** Of one user, at once. @throws ProviderError without a usable answer */
export async function checkIdentityOf(context: OidcContext, user_id: UserId): Promise<Checked> {
  const identity = await claimIdentityOf(context.db, context.provider.issuer, user_id);
  return identity === undefined ? { outcome: 'busy' } : checkIdentity(context, identity);
}

async function checkIdentity(context: OidcContext, identity: Identity): Promise<Checked> {
  const token = openRefreshToken(context.identities, identity);
  if (token === null) return endSessions(context, identity, 'no_token');
  let proof: Proof;
  try {
    proof = await context.provider.refresh(identity.subject, token);
  } catch (error) {
    if (error instanceof ProviderError && error.kind === 'refused')
      return endSessions(context, identity, 'refused');
    throw error;
  }
  const next = sealRefreshToken(context.identities, identity, proof.refresh_token ?? token);
  return transaction(context.db, async (tx) => {
    // A login meanwhile has brought newer groups.
    if (!(await replaceRefreshToken(tx, identity, next))) return { outcome: 'busy' };
    const changes = await applyGroups(tx, context, identity.user_id, proof.person, null);
    return { outcome: 'followed', changes, groups_known: proof.person.groups !== null };
  });
}

async function endSessions(
  { db, audit, provider }: OidcContext,
  identity: Identity,
  because: 'refused' | 'no_token',
): Promise<Checked> {
  const { user_id } = identity;
  return transaction(db, async (tx) => {
    // A login meanwhile has brought a newer token.
    if (!(await replaceRefreshToken(tx, identity, null))) return { outcome: 'busy' };
    const count = await deleteOtherSessions(tx, user_id, null);
    for (const org_id of await organisationsOf(tx, user_id)) {
      const entry = { actor: 'system', action: 'auth.end_sessions_by_provider', target: user_id };
      const data = { because, count, provider: provider.name };
      await audit.append(tx, org_id, { ...entry, ip: null, request_id: null, data });
    }
    return { outcome: 'sessions_ended', because, count };
  });
}

/** Asks the OpenID provider about each user whose last answer is getting old. */

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
