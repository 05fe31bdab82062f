/**
 * Turns an error into the text that the user sees: the reason, with the options and arguments that were typed instead
 * of the API's field names, and the command to type next. Suggests an existing instance for a mistyped name.
 */
import { BerthConnectionError, BerthError } from '../../client/src/berth.ts';
import { durationText } from '../../client/src/words.ts';
import type { Env } from '../config/env.ts';
import { messageOf } from '../shared/errors.ts';
import { nearest } from '../shared/nearest.ts';
import { type Command, optionsOf, ownOptionsOf } from './command.ts';
import { CommandError } from './command-error.ts';
import { collect } from './reading.ts';
import type { Session } from './session.ts';
import { localTime } from './table.ts';

/** The typed command with one more option, such as `--yes`. */
export type Again = (option: string) => string;

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** In quotes where a shell would read a word differently. */
export function shellWord(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/**
 * @param own the words up to the end of Berth's own, which the option may follow
 * @param rest the words of another program, which must stay last
 */
export function typedAgain(own: readonly string[], rest: readonly string[] = []): Again {
  const quoted = (words: readonly string[]) => words.map(shellWord);
  return (option) => {
    const [name = ''] = option.split(' ', 1);
    return ['berth', ...quoted(without(name, own, option !== name)), option, ...quoted(rest)].join(' ');
  };
}

/** A wrong value of the option is replaced. */
function without(name: string, words: readonly string[], takes_value: boolean): readonly string[] {
  return words.filter((word, at) => {
    const is_value = takes_value && words[at - 1] === name;
    return word !== name && !word.startsWith(`${name}=`) && !is_value;
  });
}

const NEXT: Readonly<Record<string, string>> = {
  UNAUTHENTICATED: 'berth login',
  Unauthenticated: 'berth login',
  SUDO_REQUIRED: 'berth sudo',
  FORBIDDEN: 'berth whoami, and ask an owner or admin of the organisation, or use a key with that scope',
  MISDIRECTED_REQUEST: "the server's public URL: --url URL; its operator can add this name to BERTH_HOSTS",
  ACCOUNT_LOCKED: 'wait, or on the server: berth user unlock EMAIL',
  RATE_LIMITED: 'wait a minute, then try again',
  UNAVAILABLE: 'berth doctor',
  UNEXPECTED: 'berth doctor',
};

/** The server on this machine can be started. */
const NOBODY_LISTENS = /\/\/(127\.|localhost|\[::1\]).*ECONNREFUSED/;
/** Hints for users of HTTP in messages: `(POST …/vm)`, `(PATCH with status "enabled")`. */
const CALLS = / \((?:GET|POST|PUT|PATCH|DELETE) [^)]*\)/g;
const TIMES = /\b\d{4}-\d\d-\d\dT[\d:.]+Z/g;
/** The request's field. */
const PLACES = /^(?:body|query|params): /;

/** `must be >= 60`, as the validation says it. */
const LIMIT = /^must be (>=|<=|>|<) (\d+)$/;
/** `must NOT have fewer than 12 characters`, as the validation says it. */
const LENGTH = /^must NOT have (fewer|more) than (\d+) characters$/;
const BOUNDS: Readonly<Record<string, string>> = {
  '>=': 'at least',
  '<=': 'at most',
  '>': 'more than',
  '<': 'less than',
};

/** `must be >= 60` of `idle_timeout_seconds` as `must be at least 1m`. */
function withUnit(field: string, issue: string): string {
  const [, compared, length] = LENGTH.exec(issue) ?? [];
  if (length !== undefined)
    return `must have ${compared === 'fewer' ? 'at least' : 'at most'} ${length} characters`;
  const [, bound = '', digits] = LIMIT.exec(issue) ?? [];
  if (digits === undefined) return issue;
  const unit = /_(mib|gib)$/.exec(field)?.[1];
  const units: Readonly<Record<string, string>> = { mib: ' MiB', gib: ' GiB' };
  const limit = field.endsWith('_seconds')
    ? durationText(Number(digits))
    : `${digits}${units[unit ?? ''] ?? ''}`;
  return `must be ${BOUNDS[bound] ?? bound} ${limit}`;
}

/** Fields of the API by the options and arguments that set them, where the command says so. */
function typedNames(command: Command): ReadonlyMap<string, string> {
  const { args = [], fields = {} } = command;
  const names = new Map<string, string>();
  for (const each of args) {
    const name = each.replace(/[[\]…]/g, '');
    names.set(name.toLowerCase().replaceAll('-', '_'), name);
  }
  for (const [name, { field = name }] of Object.entries(ownOptionsOf(command))) names.set(field, `--${name}`);
  for (const [field, name] of Object.entries(fields)) names.set(field, name);
  return names;
}

/** `labels.team` belongs to `labels`. */
function typedName(field: string, names: ReadonlyMap<string, string>): string | undefined {
  const name = names.get(field);
  const parent = field.lastIndexOf('.');
  return name !== undefined || parent === -1 ? name : typedName(field.slice(0, parent), names);
}

/** Fields in a sentence: words with an underscore. Others may be ordinary words. */
function withTypedNames(text: string, names: ReadonlyMap<string, string>): string {
  return text.replace(/\b[a-z]+(?:_[a-z]+)+\b/g, (word) => names.get(word) ?? word);
}

/** The message and its details, in the words that were typed. */
function reasons(error: unknown, command: Command, instance: string | undefined): readonly string[] {
  const names = typedNames(command);
  const message = messageOf(error)
    .replaceAll(CALLS, '')
    .replace(PLACES, '')
    .replaceAll(TIMES, (time) => localTime(time).slice(0, -3))
    .replace(/^The VM (?=is |has )/, instance === undefined ? '$&' : `${instance} `)
    .replace(/^No such resource\.$/, 'not found, or no access')
    .replace(/^A valid credential is required\.$/, 'the API key was revoked or has expired');
  if (!(error instanceof BerthError)) return [withTypedNames(message, names)];
  const [first = { field: '', issue: '' }] = error.details;
  // The message is the first detail, in one of two forms, or a sentence that may contain it.
  const [colon] = [':', ''].filter((each) => {
    const field = message.slice(0, -`${each} ${first.issue}`.length);
    const is_named = field === first.field || first.field.startsWith(`${field}.`);
    return field !== '' && is_named && message === `${field}${each} ${first.issue}`;
  });
  const details = error.details.map(({ field, issue }) => {
    const told = withUnit(field, issue);
    // A sentence needs no colon: `--from must be a network`.
    const sign = /^(is|must) /.test(told) ? '' : (colon ?? '');
    return `${typedName(field, names) ?? field}${sign} ${told}`;
  });
  if (colon !== undefined) return details;
  const more = details.filter((_, at) => !error.message.includes(error.details[at]?.issue ?? ''));
  return [withTypedNames(message, names), ...more];
}

export interface Typed {
  readonly args: readonly string[];
  readonly env?: Env;
  readonly again?: Again;
}

/** The typed command with the option; undefined for a command without it. */
function withOption(option: string, command: Command, again: Again): string | undefined {
  const [, name = ''] = /^--([a-z-]+)/.exec(option) ?? [];
  return name in optionsOf(command) ? again(option) : undefined;
}

function nextAfter(
  error: unknown,
  command: Command,
  { args, env = {}, again = typedAgain([]) }: Typed,
): string | null {
  if (error instanceof CommandError)
    return (error.again === null ? undefined : withOption(error.again, command, again)) ?? error.next;
  if (error instanceof BerthConnectionError) {
    return NOBODY_LISTENS.test(error.message)
      ? 'npm start in the folder of Berth, or berth server; then wait for “berth ready”. Or berth login --url URL, if the address is wrong. berth doctor says more'
      : 'berth doctor';
  }
  if (!(error instanceof BerthError)) return null;
  if (error.code === 'UNAUTHENTICATED' && env['BERTH_API_KEY'])
    return 'BERTH_API_KEY is set to an invalid or revoked key: set another one, or unset it';
  if (error.status === 400 && command.name === 'account reset-password' && /token|link/i.test(error.message))
    return 'berth account reset-password --email ADDRESS, for a new link: each works once, for an hour';
  if (error.code === 'FORBIDDEN' && command.name === 'register')
    return 'the address that was invited, with --email; or a new link of the inviter: each works once, for 7 days';
  if (error.code === 'FORBIDDEN' && !error.message.includes('scope'))
    return 'ask an owner or admin of the organisation';
  const name = args[0] ?? 'NAME';
  // The message says what frees some of it, and who can raise it.
  if (error.code === 'QUOTA_EXCEEDED')
    return error.details.some(({ field }) => field === 'execs') ? `berth exec ls ${name}` : null;
  if (error.code === 'CONFLICT' && error.message.startsWith('The last owner of '))
    return 'berth member role MEMBER owner, with another member';
  if (error.code === 'CONFLICT' && command.name === 'register')
    return name === 'NAME' ? 'berth login' : 'berth login, then berth invitation accept LINK';
  if (error.code === 'NOT_FOUND' && command.name === 'invitation accept')
    return 'log in with the address that was invited; or ask the inviter for a new link: each works once, for 7 days';
  if (error.code === 'CONFLICT' && error.message.includes(' is invited already '))
    return `berth invitation rm ${name}`;
  if (error.code === 'MFA_REQUIRED')
    return withOption('--totp CODE', command, again) ?? 'berth login --totp CODE';
  if (command.name === 'webhook create' && error.details.some(({ field }) => field === 'url'))
    return 'an https URL that the server may reach; its operator can allow more networks (BERTH_WEBHOOK_ALLOW_CIDRS); without a receiver: berth webhook listen';
  if (command.name === 'instance create' && error.details.some(({ field }) => field === 'image'))
    return 'berth images';
  if (error.code === 'NOT_FOUND' && ['webhook redeliver', 'webhook delivery'].includes(command.name))
    return `berth webhook deliveries ${name}`;
  if (error.code === 'CONFLICT' && error.message.startsWith('The webhook is disabled'))
    return `berth webhook enable ${name}`;
  if (error.code === 'NOT_FOUND') return command.names_instances ? 'berth ls' : null;
  if (error.code === 'VM_NOT_RUNNING') return `berth start ${name}`;
  if (error.code === 'CONFLICT' && ['instance create', 'instance fork'].includes(command.name))
    return 'berth ls, and another name';
  return NEXT[error.code] ?? null;
}

/** @param meant the existing instance that was probably meant */
export function explain(error: unknown, command: Command, typed: Typed, meant?: string): string {
  const is_certain = command.args?.[0] === 'NAME' || typed.args.length === 1;
  const [instance] = command.names_instances === true && is_certain ? typed.args : [];
  const [first = '', ...more] = reasons(error, command, instance);
  const lines = [`berth: ${first}`, ...more.map((each) => `  ${each}`)];
  // The id helps to find the failure in the server's log.
  if (error instanceof BerthError && error.status >= 500 && error.request_id !== null)
    lines.push(`  request ${error.request_id}`);
  if (meant !== undefined) lines.push(`  did you mean ${meant}?`);
  const next = nextAfter(error, command, typed);
  if (next !== null) lines.push(`  next: ${next}`);
  return lines.join('\n');
}

const MOST_INSTANCES = 1_000;
const ASK_MS = 2_000;

/** As the client says it. */
const UNKNOWN_NAME = /^There is no instance called (\S+)\.$/;

/** @returns undefined when the error is another one, no name is near, or the server does not list them soon */
export async function suggestInstance(
  error: unknown,
  command: Command,
  session: Session,
): Promise<string | undefined> {
  if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') return undefined;
  const name = UNKNOWN_NAME.exec(error.message)?.[1];
  if (name === undefined || command.on_server === true) return undefined;
  try {
    const signal = AbortSignal.timeout(ASK_MS);
    const instances = await collect(
      session.berth().instances.list({ limit: 200 }, { signal }),
      MOST_INSTANCES,
    );
    return nearest(
      name,
      instances.map((each) => each.name),
    );
  } catch {
    return undefined;
  }
}
