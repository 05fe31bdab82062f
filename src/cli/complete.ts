/**
 * Completes the last word of a command line for the shell: a command, an option, or a value. The name that the help
 * gives a value (`NAME`, `GENERATION`, `on|off`) tells where its candidates come from: a fixed list, the API, or the
 * shell's own paths. Completion never fails and changes nothing, and it waits for the server for a second or so.
 */
import { AUDIT_ACTIONS } from '../../client/src/audit-words.ts';
import type { CallOptions, Instance } from '../../client/src/berth.ts';
import { scopeOfRole } from '../../client/src/words.ts';
import { arityOf, type Command, type Option, optionsOf } from './command.ts';
import { COMMANDS, findCommand } from './command-table.ts';
import { leadingOptions, optionIn, parse } from './parse.ts';
import { readProfiles } from './profiles.ts';
import { collect } from './reading.ts';
import type { Session } from './session.ts';
import { columnNames, type Listing } from './table.ts';
import { Terminal } from './terminal.ts';
import { EVENT_TYPES, isInstanceName, ROLES, STATES } from './values.ts';

interface Asked {
  readonly command: Command;
  /** The arguments before it. */
  readonly args: readonly string[];
  readonly session: () => Session;
}

export async function complete(words: readonly string[], session: () => Session): Promise<readonly string[]> {
  const { typed, before_typed, prefix } = unquoted(words);
  const [, all] = leadingOptions(before_typed);
  const before = all[0] === 'help' ? all.slice(1) : all;
  const found = findCommand(before);
  // `audit` is a command, and begins `audit verify`.
  const words_of_names = found === undefined || found.taken === before.length ? nextWords(all, before) : [];
  const values =
    found === undefined ? [] : await nextValues(found.command, before.slice(found.taken), typed, session);
  return [...new Set([...words_of_names, ...values])]
    .filter((each) => isAnswer(each, typed))
    .map((each) => (each.startsWith(':') ? each : prefix + each));
}

/** The words as the shell would pass them; of `--state=run` the value is what is typed. */
function unquoted(words: readonly string[]) {
  const before_typed = words.slice(0, -1);
  const typed = (words.at(-1) ?? '').replace(/^["']/, '').replaceAll(/\\(.)/g, '$1');
  const [, option, value = ''] = /^(--[a-z-]+)=(.*)$/s.exec(typed) ?? [];
  if (option === undefined) return { typed, before_typed, prefix: '' };
  return { typed: value, before_typed: [...before_typed, option], prefix: `${option}=` };
}

/** `:files` is for the shell, which completes paths itself. */
const isAnswer = (value: string, typed: string) => value.startsWith(':') || value.startsWith(typed);

/** The next word of the names of commands. */
function nextWords(all: readonly string[], before: readonly string[]): readonly string[] {
  const names = COMMANDS.flatMap(({ name, short = [] }) => [name, ...short]).map((name) => name.split(' '));
  const next = names.flatMap((name) =>
    before.every((word, at) => name[at] === word) ? (name[before.length] ?? []) : [],
  );
  return [...new Set(next), ...(all.length === 0 ? ['help', 'version'] : [])];
}

async function nextValues(
  command: Command,
  before: readonly string[],
  typed: string,
  session: () => Session,
): Promise<readonly string[]> {
  const known = optionsOf(command);
  const { args, option, is_over } = placeOf(command, before, known);
  if (is_over) return [];
  const asked: Asked = { command, args, session };
  if (option !== undefined && option === known['columns']) return columnsFor(asked, before, typed);
  if (option !== undefined) return option.choices ?? valuesFor(option.value ?? '', asked);
  if (typed.startsWith('-')) return Object.keys(known).map((name) => `--${name}`);
  const { most } = arityOf(command);
  if (args.length >= most) return [];
  const last = (command.args?.length ?? 0) - 1;
  const placeholder = command.args?.[Math.min(args.length, last)] ?? '';
  const values = await valuesFor(placeholder.replace(/[[\]…]/g, ''), asked);
  // An argument that repeats names each only once.
  return placeholder.includes('…') ? values.filter((each) => !args.includes(each)) : values;
}

interface PlaceInWords {
  readonly args: readonly string[];
  /** The option whose value comes next. */
  readonly option: Option | undefined;
  /** The words of another program have begun. */
  readonly is_over: boolean;
}

function placeOf(
  command: Command,
  before: readonly string[],
  known: Readonly<Record<string, Option>>,
): PlaceInWords {
  const args: string[] = [];
  let option: Option | undefined;
  for (const word of before) {
    if (option !== undefined) {
      option = undefined;
      continue;
    }
    if (word === '--') return { args, option, is_over: command.rest !== undefined };
    if (word.startsWith('-') && word !== '-') {
      const found = optionIn(word, known);
      if (found?.type === 'string') option = found;
    } else args.push(word);
  }
  return { args, option, is_over: command.rest !== undefined && args.length > (command.args?.length ?? 0) };
}

const COLUMNS_MS = 1_500;

/** Thrown where a list would be printed, with its columns. */
class ListReached extends Error {
  readonly columns: readonly string[];
  constructor(columns: readonly string[]) {
    super();
    this.columns = columns;
  }
}

/** Prints and asks nothing. */
class ColumnReader extends Terminal {
  constructor() {
    super('records');
  }
  override get interactive(): boolean {
    return false;
  }
  override list<T>(_items: readonly T[], listing: Listing<T>): void {
    throw new ListReached(columnNames(listing));
  }
  override write(): void {}
  override warn(): void {}
}

/** Runs the command up to its list, which knows its columns. @param before up to `--columns` @param typed `name,st` */
async function columnsFor({ command, session }: Asked, before: readonly string[], typed: string) {
  if (command.on_server === true) return [];
  const signal = AbortSignal.timeout(COLUMNS_MS);
  const parsed = parse(command, before.slice(0, -1));
  const call = { ...parsed, signal, session: session().forReading(), terminal: new ColumnReader() };
  const late = new Promise<never>((_, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
  const found = await Promise.race([command.run(call), late]).catch((error: unknown) => error);
  if (!(found instanceof ListReached)) return [];
  const chosen = typed.split(',').slice(0, -1);
  const left = found.columns.filter((each) => !chosen.includes(each));
  return left.map((each) => [...chosen, each].join(','));
}

const ASK_MS = 1_000;
const MOST = 200;
const PAGE = { limit: MOST } as const;

/** The shell completes these itself (commands/integrations.ts). */
const FILES = [':files'];
const FOLDERS = [':folders'];

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

const ask = (): CallOptions => ({ signal: AbortSignal.timeout(ASK_MS) });
const upTo = <T>(items: AsyncIterable<T>): Promise<T[]> => collect(items, MOST);

/** The instance that the first argument names. */
function instanceOf({ args: [name = ''], session }: Asked): Promise<Instance> {
  return session().berth().instances.find(name, ask());
}

type Source = (asked: Asked) => readonly string[] | Promise<readonly string[]>;

/** The names of what a list of the API has. */
const namesOf =
  (operation: 'listSshKeys' | 'listApiKeys' | 'listWebhooks' | 'listServiceAccounts'): Source =>
  async ({ session }) =>
    plainly(await upTo<Named>(session().berth().list(operation, { query: PAGE }, ask())));

const SOURCES: Readonly<Record<string, Source>> = {
  NAME: async ({ command, session }) => {
    if (command.names_instances !== true) return [];
    const found = await upTo(session().berth().instances.list(PAGE, ask()));
    return found.map(({ name }) => name).filter(isInstanceName);
  },
  GENERATION: async (asked) => {
    const path = { id: (await instanceOf(asked)).id };
    const found = await upTo(asked.session().berth().list('listGenerations', { path, query: PAGE }, ask()));
    return found.flatMap(({ generation, name: given }) => [String(generation), ...(given ? [given] : [])]);
  },
  'HTTP-PORT': async (asked) => {
    const path = { id: (await instanceOf(asked)).id };
    const found = await upTo(asked.session().berth().list('listPorts', { path, query: PAGE }, ask()));
    const numbers = found.map(({ port }) => String(port));
    // A number that stands for several is no answer.
    return found.map(({ port, hostname }) =>
      numbers.filter((each) => each === String(port)).length === 1 ? String(port) : hostname,
    );
  },
  SECRET: async (asked) => {
    const path = { id: (await instanceOf(asked)).id };
    const found = await upTo(asked.session().berth().list('listSecrets', { path, query: PAGE }, ask()));
    return found.map((each) => each.name);
  },
  'SSH-KEY': namesOf('listSshKeys'),
  'API-KEY': namesOf('listApiKeys'),
  WEBHOOK: namesOf('listWebhooks'),
  ACCOUNT: namesOf('listServiceAccounts'),
  DELIVERY: async ({ args: [text = ''], session }) => {
    const berth = session().berth();
    const webhooks = await upTo(berth.list('listWebhooks', { query: PAGE }, ask()));
    const webhook = webhooks.find(({ id, name }) => id === text || name === text);
    if (webhook === undefined) return [];
    const input = { path: { id: webhook.id }, query: PAGE };
    return (await upTo(berth.list('listWebhookDeliveries', input, ask()))).map(({ id }) => id);
  },
  IMAGE: async ({ session }) => {
    const { data } = await session().berth().call('listImages', {}, ask());
    return data.map(({ id }) => id);
  },
  PROFILE: ({ session }) => Object.keys(readProfiles(session().env).profiles),
  ID: async ({ session }) => {
    const found = session()
      .berth()
      .list('listNotifications', { query: { limit: 100 } }, ask());
    return (await collect(found, 100)).map(({ id }) => id);
  },
  KIND: async ({ session }) =>
    Object.keys((await session().berth().call('getNotificationPreferences', {}, ask())).mail),
  // Those who have acted lately.
  ACTOR: async ({ session }) => {
    const { data } = await session().berth().call('listEvents', { query: PAGE }, ask());
    const names = data.flatMap(({ actor_name }) => actor_name ?? []);
    return [...new Set([...names, 'operator', 'system'])];
  },
  HOST: async (asked) => {
    const { id, egress } = await instanceOf(asked);
    if (asked.args[1] === 'remove') return egress.allow;
    const denied = await upTo(asked.session().berth().list('listDeniedEgress', { path: { id } }, ask()));
    return [...new Set(denied.flatMap((each) => each.name ?? []))];
  },
  // Members and what else only a session may read: while `berth sudo` lasts.
  MEMBER: async ({ session }) => {
    const { profile } = session();
    const input = { path: { id: profile?.org_id ?? '' }, query: PAGE };
    const found = await session().granted()?.call('listMembers', input, ask());
    return found?.data.map(({ email }) => email) ?? (profile ? [profile.email] : []);
  },
  INVITATION: async ({ session }) => {
    const input = { path: { id: session().profile?.org_id ?? '' }, query: PAGE };
    const found = await session().granted()?.call('listInvitations', input, ask());
    return found?.data.map(({ email }) => email) ?? [];
  },
  FACTOR: async ({ session }) => {
    const found = await session().granted()?.call('listMfaFactors', { query: PAGE }, ask());
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
async function valuesFor(placeholder: string, asked: Asked): Promise<readonly string[]> {
  try {
    if (placeholder.includes('|')) return placeholder.split('|');
    const values = (await SOURCES[placeholder]?.(asked)) ?? [];
    return values === FILES || values === FOLDERS ? values : values.filter((each) => PLAIN.test(each));
  } catch {
    return [];
  }
}
