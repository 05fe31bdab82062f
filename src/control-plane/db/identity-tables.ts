/** The tables of identities at an OpenID provider, and of logins that a person confirms in a browser. */
import type { Generated } from 'kysely';
import type { SessionId, UserId } from '../../shared/ids.ts';

export interface IdentityTables {
  identities: {
    issuer: string;
    subject: string;
    user_id: UserId;
    refresh_token: Buffer | null;
    checked_at: Generated<Date>;
    claimed_until: Date | null;
    created_at: Generated<Date>;
  };
  device_logins: {
    device_hash: Buffer;
    user_code: string;
    sudo: boolean;
    ip: string;
    user_agent: string;
    created_at: Generated<Date>;
    expires_at: Date;
    confirmed_by: SessionId | null;
  };
}
