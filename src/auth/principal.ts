import type { Role } from '../db/tables.ts';
import type { ApiKeyId, OrgId, SessionId, UserId } from '../lib/ids.ts';
import type { Scope } from './permissions.ts';

/** Who acts: a person by a session or by an API key, in one organisation. */
export interface Principal {
  readonly credential:
    | { readonly kind: 'session'; readonly id: SessionId }
    | { readonly kind: 'api_key'; readonly id: ApiKeyId };
  readonly user_id: UserId;
  readonly org_id: OrgId;
  readonly role: Role;
  readonly scopes: ReadonlySet<Scope>;
}

/** As it stands in events and reasons. */
export function actorOf(principal: Principal): string {
  return principal.user_id;
}
