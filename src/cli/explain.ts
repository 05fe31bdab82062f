/** Formats a failure: the reason, and what to type next. */
import { BerthConnectionError, BerthError } from '../../client/src/berth.ts';
import type { Env } from '../config/env.ts';
import { messageOf } from '../lib/errors.ts';
import type { Command } from './command.ts';
import { CommandError } from './command-error.ts';

const NEXT: Readonly<Record<string, string>> = {
  UNAUTHENTICATED: 'berth login',
  Unauthenticated: 'berth login',
  MFA_REQUIRED: 'the same with --totp CODE',
  SUDO_REQUIRED: 'berth sudo',
  FORBIDDEN: 'berth whoami, and ask an owner or admin of the organisation, or use a key with that scope',
  MISDIRECTED_REQUEST: 'the server by its public URL: --url; its operator can add this name to BERTH_HOSTS',
  ACCOUNT_LOCKED: 'wait, or on the server: berth user unlock EMAIL',
  RATE_LIMITED: 'wait a minute, then the same again',
  QUOTA_EXCEEDED:
    'delete resources that you no longer need, or ask the operator: berth org quota ORG on the server',
  UNAVAILABLE: 'berth doctor',
  UNEXPECTED: 'berth doctor',
};

/** The server on this machine can be started. */
const NOBODY_LISTENS = /\/\/(127\.|localhost|\[::1\]).*ECONNREFUSED/;
/** Hints for users of HTTP in messages: `(POST …/vm)`. */
const CALLS = / \((?:GET|POST|PUT|PATCH|DELETE) …[^)]*\)/g;
/** The request's field. */
const PLACES = /^(?:body|query|params): /;

function nextAfter(error: unknown, command: Command, args: readonly string[], env: Env): string | null {
  if (error instanceof CommandError) return error.next;
  if (error instanceof BerthConnectionError) {
    return NOBODY_LISTENS.test(error.message)
      ? 'npm start in the folder of Berth, or berth server; then wait for “berth ready”. berth doctor says more'
      : 'berth doctor';
  }
  if (!(error instanceof BerthError)) return null;
  if (error.code === 'UNAUTHENTICATED' && env['BERTH_API_KEY'])
    return 'BERTH_API_KEY is set to an invalid or revoked key: set another one, or unset it';
  const name = args[0] ?? 'NAME';
  if (command.name === 'webhook create' && error.details.some(({ field }) => field === 'url'))
    return 'another address, or one that the operator excepts (BERTH_WEBHOOK_ALLOW_CIDRS); without a receiver: berth webhook listen';
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

export function explain(error: unknown, command: Command, args: readonly string[], env: Env = {}): string {
  const lines = [`berth: ${messageOf(error).replaceAll(CALLS, '').replace(PLACES, '')}`];
  if (error instanceof BerthError) {
    // The message contains the first one.
    const more = error.details.filter(({ issue }) => !error.message.includes(issue));
    lines.push(...more.map(({ field, issue }) => `  ${field} ${issue}`));
    // The id helps to find the failure in the server's log.
    if (error.status >= 500 && error.request_id !== null) lines.push(`  request ${error.request_id}`);
  }
  const next = nextAfter(error, command, args, env);
  if (next !== null) lines.push(`  next: ${next}`);
  return lines.join('\n');
}
