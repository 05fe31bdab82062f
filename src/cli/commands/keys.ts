/**
 * The commands on SSH keys, on the sets of SSH keys that instances accept, on API keys, and on service accounts. A
 * service account owns API keys without being a person.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { type ApiKey, type Berth, BerthError, type SshKey } from '../../../client/src/berth.ts';
import type { ServiceAccount } from '../../../client/src/generated.ts';
import type { Env } from '../../config/env.ts';
import { type Call, type Command, INSTANCE } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { homeFolder } from '../profiles.ts';
import { collect, findNamed, namesOfActors, type ResourceKind, warnOfNamesakes } from '../reading.ts';
import { proofOf } from '../session.ts';
import { ago, cell, timeCell, when } from '../table.ts';
import { durationOption, scopeCell, scopeWords } from '../values.ts';

const SERVICE_ACCOUNT: ResourceKind<ServiceAccount> = {
  what: 'service account',
  list: 'berth service-account ls',
  detail: ({ scope, created_at }) => `${scopeWords(scope)}, created ${ago(created_at)}`,
};

async function create(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const body = { name: args[0] ?? '', scope: options.text('scope') ?? '*' };
  const berth = session.berth();
  const made = await berth.call('createServiceAccount', { body });
  const next = `berth api-key create NAME --service-account ${made.id}`;
  const sentence = `Created ${made.name} (${made.id}): its keys may have ${scopeWords(made.scope)}.`;
  terminal.done(`${sentence} Give it a key: ${next}`, made, made.id);
  await warnOfNamesakes(call, berth.list('listServiceAccounts', {}), made, SERVICE_ACCOUNT);
}

/** The id of a service account, said by id or name. */
async function serviceAccountId({ session }: Pick<Call, 'session'>, said: string): Promise<string> {
  return (await findNamed(session.berth().list('listServiceAccounts', {}), said, SERVICE_ACCOUNT)).id;
}

const SSH_KEY: ResourceKind<SshKey> = {
  what: 'SSH key',
  list: 'berth ssh-key ls',
  also: ({ fingerprint }) => [fingerprint],
  detail: ({ fingerprint }) => fingerprint,
};
const API_KEY: ResourceKind<ApiKey> = {
  what: 'API key',
  list: 'berth api-key ls',
  also: ({ prefix, last4 }) => [prefix, `${prefix}…${last4}`, `${prefix}...${last4}`],
  detail: (key) => `${shown(key)}, created ${ago(key.created_at)}`,
};

/** In ssh's order. */
const USUAL = ['id_ed25519.pub', 'id_ecdsa.pub', 'id_ed25519_sk.pub', 'id_ecdsa_sk.pub', 'id_rsa.pub'];

/** From a file, stdin, or the key that ssh would use. */
async function publicKey({ args, terminal, session }: Call): Promise<string> {
  const [path] = args;
  if (path !== undefined && path !== '-') {
    try {
      return readFileSync(path, 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT')
        throw new UsageError(`FILE: there is no file ${path}`);
      throw new CommandError(`${path} cannot be read: ${(error as Error).message}`);
    }
  }
  if (path === '-' || !process.stdin.isTTY) {
    const text = await terminal.stdin();
    if (path === '-' || text.trim() !== '') return text;
  }
  const found = localPublicKey(session.env);
  if (found !== undefined) return found;
  const private_key = localPrivateKeyPath(session.env);
  throw new CommandError(`there is no public key in ${sshFolder(session.env)}`, {
    next:
      private_key === undefined
        ? 'ssh-keygen -t ed25519, then berth ssh-key add'
        : `ssh-keygen -y -f ${private_key} > ${private_key}.pub, then berth ssh-key add`,
  });
}

export const sshFolder = (env: Env) => join(homeFolder(env), '.ssh');

/** The path of the first that exists. */
function firstThere(env: Env, names: readonly string[]): string | undefined {
  const folder = sshFolder(env);
  let there: readonly string[] = [];
  try {
    there = readdirSync(folder);
  } catch {
    // No such folder.
  }
  const found = names.find((name) => there.includes(name));
  return found === undefined ? undefined : join(folder, found);
}

/** The key that ssh tries first. */
export const localPublicKeyPath = (env: Env) => firstThere(env, USUAL);

/** Of a private key, whose .pub file may be missing. */
export const localPrivateKeyPath = (env: Env) =>
  firstThere(
    env,
    USUAL.map((name) => name.replace(/\.pub$/, '')),
  );

export function localPublicKey(env: Env): string | undefined {
  const path = localPublicKeyPath(env);
  return path === undefined ? undefined : readFileSync(path, 'utf8');
}

async function addSshKey(call: Call): Promise<undefined> {
  const public_key = (await publicKey(call)).trim();
  if (/PRIVATE KEY/.test(public_key)) {
    throw new CommandError('that is a private key, which must stay on your machine', {
      next: 'berth ssh-key add FILE.pub',
    });
  }
  return registerKey(call, public_key, call.options.text('name'));
}

/** Named `called`, or by the key's comment. */
export async function registerKey(call: Call, text: string, called?: string | undefined): Promise<undefined> {
  const public_key = text.trim();
  const said = public_key.split(/\s+/).slice(2).join(' ');
  const name = called ?? (said || hostname());
  const body = { name: name.slice(0, 100), public_key };
  const key = await call.session.berth().call('addSshKey', { body });
  const where = key.org_id === null ? '' : ' for instances of this organisation';
  call.terminal.done(`${key.name} (${key.fingerprint}) is registered${where}.`, key, key.id);
}

const keyRow = (key: SshKey) => [
  key.name,
  key.type,
  key.fingerprint,
  timeCell(key.last_used_at),
  timeCell(key.created_at),
  cell(key.org_id === null ? 'everywhere' : 'this organisation', key.org_id),
  key.id,
];

/** Finds keys by id or name; of several with a name, the caller's own. @throws CommandError */
async function membersKeys(berth: Berth, org_id: string, said: readonly string[]): Promise<string[]> {
  const own = await collect(berth.list('listSshKeys', {})).catch((error: unknown) => {
    // A service account has no SSH keys.
    if (error instanceof BerthError && error.status === 403) return [];
    throw error;
  });
  const all = await collect(berth.list('listOrgSshKeys', { path: { id: org_id }, query: { limit: 200 } }));
  const own_ids = new Set(own.map(({ id }) => id));
  return said.map((text) => {
    const found = all.filter(({ id, name }) => id === text || name === text);
    const mine = found.filter(({ id }) => own_ids.has(id));
    const [key, other] = mine.length > 0 ? mine : found;
    if (key === undefined) {
      const parts = { next: SSH_KEY.list, exit_code: EXIT.not_found };
      throw new CommandError(`no member of the organisation has an SSH key ${text}`, parts);
    }
    if (other === undefined) return key.id;
    const which = found.map(({ id, fingerprint }) => `\n  ${id} ${fingerprint}`).join('');
    throw new CommandError(`several SSH keys are called ${text}; give the id of one:${which}`, {
      exit_code: EXIT.not_found,
    });
  });
}

async function keySet(call: Call): Promise<undefined> {
  const { options, session, terminal, args } = call;
  const berth = session.berth();
  const { id, name, org_id } = await berth.instances.find(args[0] ?? '');
  const chosen = options.list('set');
  if ([chosen, options.flag('account'), options.flag('none')].filter(Boolean).length > 1)
    throw new UsageError('--set, --account and --none exclude each other');
  if (options.flag('account')) await berth.instances.replaceKeySet(id, { mode: 'account' });
  if (options.flag('none')) await berth.instances.replaceKeySet(id, { ssh_key_ids: [] });
  if (chosen) {
    await berth.instances.replaceKeySet(id, { ssh_key_ids: await membersKeys(berth, org_id, chosen) });
  }
  const set = await berth.instances.keySet(id);
  const nameOf = namesOfActors(call);
  if (terminal.format === 'json') return terminal.json(set) as undefined;
  terminal.say(
    set.mode === 'account' ? `${name} accepts all keys of its creator:` : `${name} accepts these keys:`,
  );
  terminal.list(set.data, {
    headings: ['NAME', 'TYPE', 'FINGERPRINT', 'OWNER'],
    row: (key) => [key.name, key.type, key.fingerprint, cell(nameOf(key.owner_id), key.owner_id)],
    more: { headings: ['ID'], row: ({ id }) => [id] },
    quiet: (key) => key.id,
    empty: 'None. Nobody can log in.',
  });
}

const shown = (key: ApiKey) => `${key.prefix}…${key.last4}`;

/** With -q prints only the new key. */
function printNewKey(
  { terminal }: Call,
  made: { readonly key: string; readonly name: string },
  sentence: string,
): void {
  terminal.done(`${sentence} The key, shown only now:\n${made.key}`, made, made.key);
}

async function createKey(call: Call): Promise<undefined> {
  const { options, args } = call;
  const holder = options.text('service-account');
  const service_account_id = holder === undefined ? undefined : await serviceAccountId(call, holder);
  const expires_in_seconds = durationOption('expires', options.text('expires'));
  const body = {
    name: args[0] ?? '',
    scope: options.text('scope') ?? (await wholeScope(call, service_account_id)),
    expires_in_seconds,
    allowed_cidrs: options.list('from') === undefined ? undefined : [...(options.list('from') ?? [])],
    service_account_id,
  };
  const berth = call.session.berth();
  const made = await berth.createApiKey(body);
  const end = made.expires_at === null ? 'It does not expire.' : `It expires ${when(made.expires_at)}.`;
  printNewKey(call, made, `Created ${made.name} (${made.id}) with ${scopeWords(made.scope)}. ${end}`);
  await warnOfNamesakes(call, berth.list('listApiKeys', {}), made, API_KEY);
}

/** The scopes of the present key if they are known: a key from the environment has no id here. */
async function wholeScope({ session }: Call, id: string | undefined): Promise<string> {
  if (id !== undefined) {
    return (await session.berth().call('getServiceAccount', { path: { id } })).scope;
  }
  const { profile } = session;
  if (profile === undefined || session.env['BERTH_API_KEY']) return '*';
  return (await session.berth().call('getApiKey', { path: { id: profile.api_key_id } })).scope;
}

/** The names of the service accounts that own some of the keys. */
async function serviceAccountNames(berth: Berth, keys: readonly ApiKey[]) {
  const found = keys.some((key) => key.service_account_id !== null)
    ? await collect(berth.list('listServiceAccounts', { query: { limit: 200 } })).catch(() => [])
    : [];
  const names = new Map(found.map(({ id, name }) => [id, name]));
  return (id: string) => names.get(id) ?? id;
}

function ownerCell({ service_account_id: id }: ApiKey, nameOf: (id: string) => string) {
  return id === null ? cell('you', null) : cell(`${nameOf(id)} (service account)`, id);
}

export const KEY_COMMANDS: readonly Command[] = [
  {
    name: 'ssh-key add',
    args: ['[FILE]'],
    fields: { public_key: 'FILE' },
    summary: 'register a public key from a file, from stdin, or the one in ~/.ssh',
    example: 'berth ssh-key add < id.pub',
    options: { name: { type: 'string', value: 'NAME', help: "default: the key's comment" } },
    run: addSshKey,
  },
  {
    name: 'ssh-key ls',
    summary: 'list the keys of your account that can log in to instances of this organisation',
    example: 'berth ssh-key ls',
    run: async ({ session, terminal }) => {
      terminal.list(await collect(session.berth().list('listSshKeys', {})), {
        headings: ['NAME', 'TYPE', 'FINGERPRINT', 'USED', 'ADDED', 'FOR', 'ID'],
        row: keyRow,
        quiet: ({ id }) => id,
        empty: 'No SSH keys yet. Register one: berth ssh-key add',
      });
    },
  },
  {
    name: 'ssh-key rm',
    args: ['SSH-KEY'],
    summary: 'revoke a key; its next login is refused',
    example: 'berth ssh-key rm laptop',
    run: async ({ session, terminal, args }) => {
      const berth = session.berth();
      const { id, name } = await findNamed(berth.list('listSshKeys', {}), args[0] ?? '', SSH_KEY);
      await berth.call('revokeSshKey', { path: { id } });
      terminal.done(`Revoked ${name}.`, { revoked: id });
    },
  },
  {
    name: 'instance ssh-keys',
    lists: true,
    ...INSTANCE,
    summary: 'show or change the SSH keys that an instance accepts',
    example: 'berth instance ssh-keys web --set laptop --set desk',
    options: {
      set: {
        type: 'string',
        value: 'SSH-KEY',
        multiple: true,
        field: 'ssh_key_ids',
        help: "only these keys, yours or other members'; repeatable",
      },
      account: { type: 'boolean', help: "all keys of the creator's account, later ones too" },
      none: { type: 'boolean', help: 'no key: nobody can log in' },
    },
    run: keySet,
  },
  {
    name: 'api-key create',
    args: ['NAME'],
    summary: 'create an API key',
    example: "berth api-key create ci --scope 'instances:read vm:write' --expires 90d",
    options: {
      scope: {
        type: 'string',
        value: 'SCOPE',
        help: 'resource:action, separated by spaces; default: all permissions of your login or the service account',
      },
      expires: {
        type: 'string',
        value: 'DURATION',
        field: 'expires_in_seconds',
        help: 'revoke it after this time, such as 12h or 90d; default: never',
      },
      from: {
        type: 'string',
        value: 'CIDR',
        multiple: true,
        field: 'allowed_cidrs',
        help: 'usable only from this network; repeatable; default: from everywhere',
      },
      'service-account': {
        type: 'string',
        value: 'ACCOUNT',
        field: 'service_account_id',
        help: 'a key of this service account instead of yours',
      },
    },
    run: createKey,
  },
  {
    name: 'api-key ls',
    summary: 'list API keys',
    example: 'berth api-key ls',
    run: async ({ session, terminal }) => {
      const berth = session.berth();
      const keys = await collect(berth.list('listApiKeys', {}));
      const nameOf = await serviceAccountNames(berth, keys);
      terminal.list(keys, {
        headings: ['NAME', 'KEY', 'OWNER', 'SCOPE', 'USED', 'EXPIRES', 'ID'],
        row: (key) => [
          key.name,
          shown(key),
          ownerCell(key, nameOf),
          scopeCell(key.scope),
          timeCell(key.last_used_at),
          timeCell(key.expires_at),
          key.id,
        ],
        quiet: ({ id }) => id,
        empty: 'No API keys.',
      });
    },
  },
  {
    name: 'api-key rm',
    args: ['API-KEY'],
    summary: 'revoke an API key',
    example: 'berth api-key rm ci --descendants',
    options: {
      descendants: {
        type: 'boolean',
        help: 'also every API key and SSH key that was created with it, directly or through other keys',
      },
    },
    run: async ({ session, terminal, args, options }) => {
      const berth = session.berth();
      const { id, name } = await findNamed(berth.list('listApiKeys', {}), args[0] ?? '', API_KEY);
      const descendants = options.flag('descendants');
      await berth.call('revokeApiKey', { path: { id }, query: descendants ? { descendants: 'true' } : {} });
      const with_it = descendants ? ' and all API keys and SSH keys that were created with it' : '';
      terminal.done(`Revoked ${name}${with_it}.`, { revoked: id });
    },
  },
  {
    name: 'api-key rotate',
    password: 'unless_sudo',
    args: ['API-KEY'],
    summary: 'give a key a new secret',
    example: 'berth api-key rotate ci --grace 1h',
    options: {
      grace: {
        type: 'string',
        value: 'DURATION',
        field: 'grace_seconds',
        help: 'how long the old secret still works, such as 1h; default: 0',
      },
    },
    run: async (call) => {
      const { session, options, args } = call;
      const found = await findNamed(session.berth().list('listApiKeys', {}), args[0] ?? '', API_KEY);
      const grace_seconds = durationOption('grace', options.text('grace')) ?? 0;
      const input = { path: { id: found.id }, body: { grace_seconds } };
      const made = await session.withSudo(proofOf(options), (berth) => berth.call('rotateApiKey', input));
      const { profile } = session;
      // Our own key: continue with the new one.
      if (profile?.api_key_id === found.id)
        session.keep(session.profile_name, { ...profile, api_key: made.key });
      printNewKey(call, made, `${made.name} has a new secret.`);
    },
  },
  {
    name: 'service-account create',
    args: ['NAME'],
    summary: 'create a service account, whose API keys belong to no person',
    example: "berth service-account create ci --scope 'instances:read vm:write'",
    options: {
      scope: {
        type: 'string',
        value: 'SCOPE',
        help: 'the largest scope that its keys can have: resource:action, separated by spaces; default: all permissions',
      },
    },
    run: create,
  },
  {
    name: 'service-account ls',
    summary: 'list the service accounts of the organisation',
    example: 'berth service-account ls',
    run: async ({ session, terminal }) => {
      terminal.list(await collect(session.berth().list('listServiceAccounts', {})), {
        headings: ['NAME', 'SCOPE', 'CREATED', 'ID'],
        row: ({ name, scope, created_at, id }) => [name, scopeCell(scope), timeCell(created_at), id],
        quiet: ({ id }) => id,
        empty: 'No service accounts. Create one: berth service-account create NAME',
      });
    },
  },
  {
    name: 'service-account rm',
    args: ['ACCOUNT'],
    summary: 'delete a service account; its API keys no longer work',
    example: 'berth service-account rm ci',
    run: async (call) => {
      const { session, terminal, args } = call;
      const berth = session.berth();
      const found = await findNamed(berth.list('listServiceAccounts', {}), args[0] ?? '', SERVICE_ACCOUNT);
      await berth.call('deleteServiceAccount', { path: { id: found.id } });
      terminal.done(`Deleted ${found.name}. Its API keys no longer work.`, { deleted: found.id }, found.id);
    },
  },
];
