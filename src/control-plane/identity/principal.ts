/**
 * Defines `Principal`, the caller of a request: a person (by a session or an API key) or a service account, always in
 * one organisation.
 */
import { AppError } from '../../shared/errors.ts';
import type { ApiKeyId, OrgId, ServiceAccountId, SessionId, UserId } from '../../shared/ids.ts';
import type { Role } from '../../shared/roles.ts';
import type { Scope } from './permissions.ts';

export type Credential =
  | {
      readonly kind: 'session';
      readonly id: SessionId;
      readonly user_id: UserId;
      /** The stored value; without SMTP every address counts as confirmed. */
      readonly email_confirmed: boolean;
    }
  | {
      readonly kind: 'api_key';
      readonly id: ApiKeyId;
      /** SHA-256 of the secret: a rotation ends the secret and keeps the key. */
      readonly secret_hash: Buffer;
      readonly user_id: UserId;
      /** When the secret expires: the key's expiry, or the end of a rotation's grace; null: never. */
      readonly ends_at: Date | null;
      /** Empty: usable from everywhere. */
      readonly allowed_cidrs: readonly string[];
    }
  /** An API key of a service account, without person and role. */
  | {
      readonly kind: 'service_key';
      readonly id: ApiKeyId;
      readonly secret_hash: Buffer;
      readonly service_account_id: ServiceAccountId;
    };

/** Who acts, in one organisation. */
export interface Principal {
  readonly credential: Credential;
  readonly org_id: OrgId;
  /** Null for a service account. */
  readonly role: Role | null;
  readonly scopes: ReadonlySet<Scope>;
}

/** The person or service account, for events, reasons and the audit log. */
export function actorOf({ credential }: Principal): UserId | ServiceAccountId {
  return credential.kind === 'service_key' ? credential.service_account_id : credential.user_id;
}

/** The acting person. @throws AppError FORBIDDEN for a service account */
export function userOf({ credential }: Principal): UserId {
  if (credential.kind === 'service_key') {
    throw new AppError('FORBIDDEN', {
      message: 'A service account is no person: it has no account of its own.',
    });
  }
  return credential.user_id;
}

/** Whether the principal is an owner or administrator of its organisation. */
export function isAdmin({ role }: Principal): boolean {
  return role === 'owner' || role === 'admin';
}
