/** Inserts users, organisations, roles and credentials into the database directly. */
import { createHash, randomBytes } from 'node:crypto';
import type { Db } from '../../src/control-plane/db/pool.ts';
import { hashPassword } from '../../src/control-plane/identity/passwords.ts';
import {
  API_KEY_PREFIX,
  hashToken,
  newToken,
  SESSION_PREFIX,
  SUDO_PREFIX,
} from '../../src/control-plane/identity/tokens.ts';
import {
  type ApiKeyId,
  type NotificationId,
  newId,
  type OrgId,
  type ServiceAccountId,
  type SessionId,
  type UserId,
} from '../../src/shared/ids.ts';
import type { Role } from '../../src/shared/roles.ts';

export interface Person {
  readonly user_id: UserId;
  readonly org_id: OrgId;
  readonly email: string;
  readonly role: Role;
  readonly session_id: SessionId;
  /** The plain session token. */
  readonly session: string;
}

export interface PersonOptions {
  /** An existing organisation; absent: a new one. */
  readonly org_id?: OrgId;
  readonly role?: Role;
  readonly email?: string;
  /** Absent: the account has a hash that no password matches, which saves the time of hashing. */
  readonly password?: string;
  /** Default: true. */
  readonly email_confirmed?: boolean;
}

export async function makePerson(db: Db, options: PersonOptions = {}): Promise<Person> {
  const user_id = newId('usr');
  const role = options.role ?? 'owner';
  const email = options.email ?? `${user_id}@example.org`;
  const password_hash = await (options.password === undefined ? UNUSABLE_HASH : hashOf(options.password));
  await db
    .insertInto('users')
    .values({
      id: user_id,
      email,
      email_key: email.toLowerCase(),
      name: 'Test Person',
      password_hash,
      email_confirmed: options.email_confirmed ?? true,
    })
    .execute();
  const org_id = options.org_id ?? newId('org');
  if (options.org_id === undefined) {
    await db.insertInto('organisations').values({ id: org_id, name: 'Org', billing_email: email }).execute();
  }
  await db.insertInto('memberships').values({ org_id, user_id, role }).execute();
  return { user_id, org_id, email, role, ...(await makeSession(db, user_id)) };
}

const UNUSABLE_HASH = hashPassword(randomBytes(24).toString('base64'));

/** Cached, because many users of a test file have the same password. */
const hashes = new Map<string, Promise<string>>();
function hashOf(password: string): Promise<string> {
  const made = hashes.get(password) ?? hashPassword(password);
  hashes.set(password, made);
  return made;
}

export async function makeSession(
  db: Db,
  user_id: UserId,
  lifetime_ms = 3_600_000,
): Promise<{ session_id: SessionId; session: string }> {
  const session = newToken(SESSION_PREFIX);
  const session_id = newId('sess');
  await db
    .insertInto('sessions')
    .values({
      id: session_id,
      user_id,
      ip: '127.0.0.1',
      user_agent: 'test',
      ends_at: new Date(Date.now() + 30 * 86_400_000),
    })
    .execute();
  await db
    .insertInto('session_tokens')
    .values({
      token_hash: hashToken(session),
      session_id,
      expires_at: new Date(Date.now() + lifetime_ms),
    })
    .execute();
  return { session_id, session };
}

export type KeyHolder =
  | { readonly org_id: OrgId; readonly user_id: UserId }
  | { readonly org_id: OrgId; readonly service_account_id: ServiceAccountId };

export async function makeKey(
  db: Db,
  holder: KeyHolder,
  scope: string,
  expires_at: Date | null = null,
  id = newId('ak'),
): Promise<{ id: ApiKeyId; key: string }> {
  const key = newToken(API_KEY_PREFIX);
  await db
    .insertInto('api_keys')
    .values({
      id,
      org_id: holder.org_id,
      ...('user_id' in holder
        ? { user_id: holder.user_id }
        : { service_account_id: holder.service_account_id }),
      name: 'test',
      scope,
      token_hash: hashToken(key),
      prefix: key.slice(0, 15),
      last4: key.slice(-4),
      expires_at,
    })
    .execute();
  return { id, key };
}

export async function makeServiceAccount(db: Db, org_id: OrgId, scope: string): Promise<ServiceAccountId> {
  const id = newId('sa');
  await db
    .insertInto('service_accounts')
    .values({ id, org_id, name: 'robot', scope, created_by: 'test' })
    .execute();
  return id;
}

/** A key of a new service account, both with this scope. */
export async function makeServiceKey(
  db: Db,
  org_id: OrgId,
  scope: string,
  wanted_id?: string,
  account?: string,
): Promise<{ id: ApiKeyId; key: string }> {
  const id = wanted_id?.startsWith('ak_') === true ? (wanted_id as ApiKeyId) : newId('ak');
  const service_account_id =
    account === undefined ? await makeServiceAccount(db, org_id, scope) : (account as ServiceAccountId);
  return makeKey(db, { org_id, service_account_id }, scope, null, id);
}

/** Inserts a notification as the dispatcher does. */
export async function makeNotification(
  db: Db,
  recipient: UserId | ServiceAccountId,
): Promise<NotificationId> {
  const id = newId('ntf');
  const now = new Date();
  await db
    .insertInto('notifications')
    .values({
      id,
      recipient,
      kind: 'ssh_key.added',
      title: 'A key',
      body: 'Was added.',
      resource_type: 'ssh_key',
      resource_id: newId('key'),
      data: '{}',
      count: 1,
      position: 0,
      event_id: newId('evt'),
      created_at: now,
      raised_at: now,
      read_at: null,
    })
    .execute();
  return id;
}

/** A valid sudo grant of the user's session, as a header. */
export async function makeSudo(
  db: Db,
  { session_id, user_id }: Pick<Person, 'session_id' | 'user_id'>,
  lifetime_ms = 300_000,
): Promise<{ cookie: string }> {
  const token = newToken(SUDO_PREFIX);
  const expires_at = new Date(Date.now() + lifetime_ms);
  await db
    .insertInto('sudo_grants')
    .values({ token_hash: hashToken(token), session_id, user_id, expires_at })
    .execute();
  return { cookie: `__Secure-berth_sudo=${token}` };
}

/** A well-formed ed25519 line of random bytes. */
export function randomPublicKey(): { line: string; fingerprint: string } {
  const field = (bytes: Buffer) => {
    const length = Buffer.alloc(4);
    length.writeUInt32BE(bytes.length);
    return Buffer.concat([length, bytes]);
  };
  const blob = Buffer.concat([field(Buffer.from('ssh-ed25519')), field(randomBytes(32))]);
  const digest = createHash('sha256').update(blob).digest('base64').replace(/=+$/, '');
  return { line: `ssh-ed25519 ${blob.toString('base64')}`, fingerprint: `SHA256:${digest}` };
}

/** @param org_id the only organisation that the key is valid in */
export async function makeSshKey(db: Db, user_id: UserId, org_id: OrgId | null = null) {
  const { line, fingerprint } = randomPublicKey();
  const id = newId('key');
  await db
    .insertInto('ssh_keys')
    .values({
      id,
      user_id,
      org_id,
      name: 'laptop',
      type: 'ssh-ed25519',
      fingerprint,
      public_key: line,
      last_used_at: null,
    })
    .execute();
  return { id, line, fingerprint };
}
