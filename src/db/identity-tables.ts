/** The table of identities at an OpenID provider. */
import type { Generated } from 'kysely';
import type { UserId } from '../lib/ids.ts';

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
}
