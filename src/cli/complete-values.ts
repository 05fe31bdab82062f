/** The values that an argument or an option may have, by its name in the help: `NAME`, `GENERATION`, `FILE`, `on|off`. */
import { AUDIT_ACTIONS } from '../../client/src/audit-words.ts';
import type { EventType, VmState } from '../../client/src/berth.ts';
import type { Member } from '../../client/src/generated.ts';
import { scopeOfRole } from '../../client/src/words.ts';
import type { Command } from './command.ts';
import { isInstanceName } from './numbers.ts';
import { readProfiles } from './profiles.ts';
import { collect } from './reading.ts';
import type { Session } from './session.ts';

export interface Asked {
  readonly command: Command;
  /** The arguments before it. */
  readonly args: readonly string[];
  readonly session: () => Session;
}

const ASK_MS = 1_000;
const MOST = 200;

/** The shell completes these itself (commands/completion.ts). */
const FILES = [':files'];
const FOLDERS = [':folders'];

const VM_STATES: Readonly<Record<VmState, true>> = {
  starting: true,
  running: true,
  restarting: true,
  suspending: true,
  suspended: true,
  stopping: true,
  stopped: true,
  failed: true,
};
export const STATES: readonly string[] = Object.keys(VM_STATES);

const ROLES: readonly Member['role'][] = ['owner', 'admin', 'member', 'billing'];

const TYPES: Readonly<Record<EventType, true>> = {
  'instance.created': true,
  'instance.deleted': true,
  'instance.forked': true,
  'instance.restored': true,
  'instance.ssh_keys_replaced': true,
  'vm.started': true,
  'vm.stopped': true,
  'vm.suspended': true,
  'vm.restarted': true,
  'vm.failed': true,
  'vm.recovered': true,
  'disk.flushed': true,
  'disk.flush_failed': true,
  'egress.denied': true,
  'port.created': true,
  'port.changed': true,
  'port.deleted': true,
  'ssh_key.added': true,
  'ssh_key.revoked': true,
  'api_key.created': true,
  'api_key.rotated': true,
  'api_key.revoked': true,
  'member.added': true,
  'member.removed': true,
  'member.role_changed': true,
  'webhook.disabled': true,
  'webhook.ping': true,
};

export const EVENT_TYPES: readonly string[] = Object.keys(TYPES);

type Source = (asked: Asked) => readonly string[] | Promise<readonly string[]>;

interface Named {
  readonly id: string;
  readonly name: string;
}

/** A shell must not interpret what the server sends, names or ids. */
const PLAIN = /^[A-Za-z0-9][A-Za-z0-9@._:+-]*( [A-Za-z0-9@._:+-]+)*$/;

/** Names, or ids where a shell might expand the name, or where several have it. */
function plainly(found: readonly Named[]): readonly string[] {
  const stands = (name: string) => found.filter((each) => each.name === name).length === 1;
  return found.map(({ id, name }) => (PLAIN.test(name) && stands(name) ? name : id));
}

function ask() {
  return { signal: AbortSignal.timeout(ASK_MS) };
}

const SOURCES: Readonly<Record<string, Source>> = {
  NAME: async ({ command, session }) => {
    if (command.names_instances !== true) return [];
    const found = await collect(session().berth().instances.list({ limit: MOST }, ask()), MOST);
    return found.map(({ name }) => name).filter(isInstanceName);
  },
  GENERATION: async ({ args: [name = ''], session }) => {
    const berth = session().berth();
    const { id } = await berth.instances.find(name, ask());
    const input = { path: { id }, query: { limit: MOST } };
    const found = await collect(berth.list('listGenerations', input, ask()), MOST);
    return found.flatMap(({ generation, name: given }) => [String(generation), ...(given ? [given] : [])]);
  },
  'HTTP-PORT': async ({ args: [name = ''], session }) => {
    const berth = session().berth();
    const { id } = await berth.instances.find(name, ask());
    const input = { path: { id }, query: { limit: MOST } };
    const found = await collect(berth.list('listPorts', input, ask()), MOST);
    const numbers = found.map(({ port }) => String(port));
    // A number that stands for several is no answer.
    return found.map(({ port, hostname }) =>
      numbers.filter((each) => each === String(port)).length === 1 ? String(port) : hostname,
    );
  },
  SECRET: async ({ args: [name = ''], session }) => {
    const berth = session().berth();
    const { id } = await berth.instances.find(name, ask());
    const input = { path: { id }, query: { limit: MOST } };
    return (await collect(berth.list('listSecrets', input, ask()), MOST)).map((each) => each.name);
  },
  'SSH-KEY': async ({ session }) =>
    plainly(
      await collect(
        session()
          .berth()
          .list('listSshKeys', { query: { limit: MOST } }, ask()),
        MOST,
      ),
    ),
  'API-KEY': async ({ session }) =>
    plainly(
      await collect(
        session()
          .berth()
          .list('listApiKeys', { query: { limit: MOST } }, ask()),
        MOST,
      ),
    ),
  WEBHOOK: async ({ session }) =>
    plainly(
      await collect(
        session()
          .berth()
          .list('listWebhooks', { query: { limit: MOST } }, ask()),
        MOST,
      ),
    ),
  DELIVERY: async ({ args: [text = ''], session }) => {
    const berth = session().berth();
    const webhooks = await collect(berth.list('listWebhooks', { query: { limit: MOST } }, ask()), MOST);
    const webhook = webhooks.find(({ id, name }) => id === text || name === text);
    if (webhook === undefined) return [];
    const input = { path: { id: webhook.id }, query: { limit: MOST } };
    return (await collect(berth.list('listWebhookDeliveries', input, ask()), MOST)).map(({ id }) => id);
  },
  IMAGE: async ({ session }) => {
    const { data } = await session().berth().call('listImages', {}, ask());
    return data.map(({ id }) => id);
  },
  PROFILE: ({ session }) => Object.keys(readProfiles(session().env).profiles),
  ACCOUNT: async ({ session }) =>
    plainly(
      await collect(
        session()
          .berth()
          .list('listServiceAccounts', { query: { limit: MOST } }, ask()),
        MOST,
      ),
    ),
  ID: async ({ session }) => {
    const input = { query: { limit: 100 } };
    return (await collect(session().berth().list('listNotifications', input, ask()), 100)).map(
      ({ id }) => id,
    );
  },
  KIND: async ({ session }) =>
    Object.keys((await session().berth().call('getNotificationPreferences', {}, ask())).mail),
  // Those who have acted lately.
  ACTOR: async ({ session }) => {
    const { data } = await session()
      .berth()
      .call('listEvents', { query: { limit: MOST } }, ask());
    const names = data.flatMap(({ actor_name }) => actor_name ?? []);
    return [...new Set([...names, 'operator', 'system'])];
  },
  HOST: async ({ args: [name = '', action], session }) => {
    const berth = session().berth();
    const { id, egress } = await berth.instances.find(name, ask());
    if (action === 'remove') return egress.allow;
    const denied = await collect(berth.list('listDeniedEgress', { path: { id } }, ask()), MOST);
    return [...new Set(denied.flatMap((each) => each.name ?? []))];
  },
  // Members and what else only a session may read: while `berth sudo` lasts.
  MEMBER: async ({ session }) => {
    const { profile } = session();
    const input = { path: { id: profile?.org_id ?? '' }, query: { limit: MOST } };
    const found = await session().granted()?.call('listMembers', input, ask());
    return found?.data.map(({ email }) => email) ?? (profile ? [profile.email] : []);
  },
  INVITATION: async ({ session }) => {
    const input = { path: { id: session().profile?.org_id ?? '' }, query: { limit: MOST } };
    const found = await session().granted()?.call('listInvitations', input, ask());
    return found?.data.map(({ email }) => email) ?? [];
  },
  FACTOR: async ({ session }) => {
    const found = await session()
      .granted()
      ?.call('listMfaFactors', { query: { limit: MOST } }, ask());
    return plainly(found?.data ?? []);
  },
  ROLE: () => ROLES,
  STATE: () => STATES,
  TYPE: () => EVENT_TYPES,
  ACTION: () => AUDIT_ACTIONS,
  SCOPE: () => [...scopeOfRole('member').split(' '), 'webhooks:write', 'org:write'],
  SHELL: () => ['bash', 'zsh', 'fish'],
  FILE: () => FILES,
  FOLDER: () => FOLDERS,
};

/** Nothing for a name that only its user knows, and while the server does not answer. */
export async function valuesFor(placeholder: string, asked: Asked): Promise<readonly string[]> {
  try {
    if (placeholder.includes('|')) return placeholder.split('|');
    const values = (await SOURCES[placeholder]?.(asked)) ?? [];
    return values === FILES || values === FOLDERS ? values : values.filter((each) => PLAIN.test(each));
  } catch {
    return [];
  }
}
