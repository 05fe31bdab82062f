/** `berth user sync` and `berth user unlink`, on the server: accounts and who they are at the OpenID provider. */
import { transaction } from '../control-plane/db/pool.ts';
import { type Checked, checkIdentityOf } from '../control-plane/identity/login-at-provider.ts';
import {
  deleteIdentities,
  identitySealer,
  listIdentified,
} from '../control-plane/identity/oidc/identity-store.ts';
import {
  type OidcContext,
  OidcProvider,
  ProviderError,
  redirectUri,
} from '../control-plane/identity/oidc/provider.ts';
import { deleteOtherSessions, findUserByEmail } from '../control-plane/identity/store.ts';
import type { UserId } from '../shared/ids.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import type { ServerContext } from './server-context.ts';
import { noAccount, note } from './user-commands.ts';

interface LinkedUser {
  readonly id: UserId;
  readonly email: string;
}

function contextOf({ config, root_key, db, audit }: ServerContext): OidcContext {
  const { oidc, public_url, quotas, signups } = config;
  if (oidc === null) {
    throw new CommandError('BERTH_OIDC_ISSUER is not set; give this command the settings of the server');
  }
  const provider = new OidcProvider({ ...oidc, redirect_uri: redirectUri(public_url) });
  return { db, audit, quotas, signups, provider, identities: identitySealer(root_key) };
}

/** Asks the provider about one account or all, without waiting for the hourly check. A line for each. */
export async function syncUsers(server: ServerContext, email: string | undefined): Promise<string> {
  const context = contextOf(server);
  const linked = await listIdentified(server.db, context.provider.issuer);
  const chosen =
    email === undefined ? linked : linked.filter((each) => each.email.toLowerCase() === email.toLowerCase());
  if (email !== undefined && chosen.length === 0) {
    if (!(await findUserByEmail(server.db, email))) throw noAccount(email);
    throw new CommandError(
      `${email} is not linked to ${context.provider.name}: it has never logged in there`,
    );
  }
  if (chosen.length === 0) return `No account is linked to ${context.provider.name}.\n`;
  const lines: string[] = [];
  for (const user of chosen) lines.push(`${user.email}: ${await sync(context, user)}\n`);
  return lines.join('');
}

async function sync(context: OidcContext, { id }: LinkedUser): Promise<string> {
  try {
    return described(await checkIdentityOf(context, id));
  } catch (error) {
    if (!(error instanceof ProviderError)) throw error;
    const { name } = context.provider;
    throw new CommandError(
      `${name} gave no usable answer, and nothing was changed for this account: ${error.message}`,
      {
        next: 'berth doctor',
        exit_code: EXIT.unavailable,
      },
    );
  }
}

function described(checked: Checked): string {
  if (checked.outcome === 'busy') return 'is being checked at this moment';
  if (checked.outcome === 'sessions_ended') {
    const why =
      checked.because === 'refused' ? 'the provider refuses it' : 'it cannot be checked without a login';
    return `${why}; ended ${checked.count} ${checked.count === 1 ? 'session' : 'sessions'}. Its API and SSH keys remain`;
  }
  if (!checked.groups_known) return 'the provider does not tell its groups; nothing changed';
  if (checked.changes.length === 0) return 'nothing changed';
  return checked.changes
    .map(({ change, org_id, role }) =>
      change === 'last_owner_kept'
        ? `stays the last owner of ${org_id}`
        : change === 'removed'
          ? `no longer ${role} of ${org_id}`
          : `now ${role} of ${org_id}`,
    )
    .join(', ');
}

/** The next login at the provider is then that of a stranger. Ends every session. */
export async function unlinkUser({ db, audit }: ServerContext, email: string): Promise<string> {
  const user = await findUserByEmail(db, email);
  if (!user) throw noAccount(email);
  const count = await transaction(db, async (tx) => {
    const gone = await deleteIdentities(tx, user.id);
    if (gone === 0) return 0;
    await deleteOtherSessions(tx, user.id, null);
    await note(tx, audit, user.id, 'auth.unlink_identity');
    return gone;
  });
  if (count === 0) return `${user.email} is not linked to an OpenID provider.\n`;
  return `${user.email} is no longer linked, and its sessions have ended. Its next login at the provider links it again if the address is verified there.\n`;
}
