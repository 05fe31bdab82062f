/**
 * Routes of the serial console: the end of its log, its live stream, and tickets for the stream. A browser's WebSocket
 * cannot send a credential, so it sends a ticket, which is valid once, within a minute. Streams of execs use the same
 * tickets. Access to the console is root access to the guest.
 */
import { type TSchema, Type } from 'typebox';
import type { ConsoleLogResult } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { ApiKeyId, ExecId, HostId, InstanceId, OrgId, SessionId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import { type App, mutate } from '../http/mutate.ts';
import { closed, EmptyBody, InstanceParams, named, oneOf, Time, wholeNumber } from '../http/schemas.ts';
import { type KnownCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { CONSOLE_PREFIX, hashToken, newToken, type TokenPrefix, tokenPrefix } from '../identity/tokens.ts';
import { lockInstanceOf, refuseDeleting } from '../instances/change-instance.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance, type InstanceRow } from '../instances/store.ts';
import { insertTicket, TICKET_SECONDS, takeTicket } from './console-ticket-store.ts';
import { type CommandTarget, commandTarget } from './exec-routes.ts';
import type { StreamKind } from './guest-streams.ts';
import { remedy, type VmState } from './model.ts';
import { markUsed } from './store.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const LOG_WITHIN_MS = 30_000;
/** The states with a QEMU process. A guest that boots or shuts down is when its console helps most. */
const WITH_MACHINE: readonly VmState[] = ['starting', 'running', 'restarting', 'suspending', 'stopping'];

/** The end of the log, earlier boots included; '' when the instance never ran. @throws AppError UNAVAILABLE */
async function readConsoleLog(
  calls: HostCalls,
  row: InstanceRow,
  { max_bytes, timestamps }: { readonly max_bytes: number; readonly timestamps: boolean },
  signal: AbortSignal,
): Promise<string> {
  if (row.host_id === null) return '';
  const call = {
    ...({ kind: 'console_log', instance_id: row.id, max_bytes } as const),
    ...(timestamps ? { timestamps } : {}),
  };
  const { text } = await calls.ask<ConsoleLogResult>(row.host_id as HostId, call, LOG_WITHIN_MS, signal);
  return text;
}

/** @throws AppError NOT_FOUND, CONFLICT, VM_NOT_RUNNING */
async function issueConsoleTicket(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
): Promise<{ ticket: string; expires_at: Date }> {
  requireMachine(await lockInstanceOf(tx, principal, id));
  await markUsed(tx, id);
  return issueTicket(tx, principal, { prefix: CONSOLE_PREFIX, instance_id: id, exec_id: null });
}

/** What a ticket is for; no exec: the console. */
export interface TicketTarget {
  readonly prefix: TokenPrefix;
  readonly instance_id: InstanceId;
  readonly exec_id: ExecId | null;
}

/** A ticket for a stream to the instance's guest. */
export async function issueTicket(
  tx: Tx,
  { credential, org_id }: Principal,
  { prefix, instance_id, exec_id }: TicketTarget,
): Promise<{ ticket: string; expires_at: Date }> {
  const ticket = newToken(prefix);
  const { expires_at } = await insertTicket(tx, {
    ticket_hash: hashToken(ticket),
    instance_id,
    exec_id,
    org_id,
    credential_kind: credential.kind === 'session' ? 'session' : 'key',
    credential_id: credential.id,
    secret_hash: credential.kind === 'session' ? null : credential.secret_hash,
  });
  return { ticket, expires_at };
}

/** The credential that a consumed ticket stands for, and its console. */
export interface ConsoleHolder {
  readonly credential: KnownCredential;
  readonly org_id: OrgId;
  readonly instance_id: InstanceId;
}

/** Consumes a ticket of this instance. @throws AppError UNAUTHENTICATED */
function consumeConsoleTicket(tx: Tx, id: string, ticket: string): Promise<ConsoleHolder> {
  return consumeTicket(tx, ticket, {
    prefix: CONSOLE_PREFIX,
    instance_id: id as InstanceId,
    exec_id: null,
  });
}

/** Consumes a ticket of {@link issueTicket}. @throws AppError UNAUTHENTICATED */
export async function consumeTicket(
  tx: Tx,
  ticket: string,
  { prefix, instance_id: id, exec_id }: TicketTarget,
): Promise<ConsoleHolder> {
  const found =
    tokenPrefix(ticket) === prefix ? await takeTicket(tx, id, exec_id, hashToken(ticket)) : undefined;
  if (!found) {
    throw new AppError('UNAUTHENTICATED', {
      message: 'The ticket is unknown, used or expired. Request another.',
    });
  }
  const { credential_id, secret_hash, org_id, instance_id } = found;
  const credential: KnownCredential =
    secret_hash === null
      ? { kind: 'session', id: credential_id as SessionId }
      : { kind: 'key', id: credential_id as ApiKeyId, secret_hash };
  return { credential, org_id, instance_id };
}

/**
 * Reauthorises the holder and finds the console's host. Called periodically while a console is open, which also marks the
 * VM as used.
 * @throws AppError UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT, VM_NOT_RUNNING
 */
async function consolePlace(db: Db, holder: ConsoleHolder, ip: string): Promise<CommandTarget> {
  const { scopes } = await reauthenticate(db, holder.credential, holder.org_id, ip);
  if (!scopes.has('vm:write')) throw new AppError('FORBIDDEN');
  const row = await findInstance(db, holder.org_id, holder.instance_id);
  if (!row) throw new AppError('NOT_FOUND');
  requireMachine(row);
  await markUsed(db, row.id);
  return commandTarget(row);
}

/** @throws AppError CONFLICT, VM_NOT_RUNNING */
export function requireMachine(row: InstanceRow): void {
  refuseDeleting(row);
  const state = row.state ?? 'stopped';
  if (!WITH_MACHINE.includes(state)) throw new AppError('VM_NOT_RUNNING', { message: remedy(state, 'exec') });
}

/** The live serial console. */
export const consoleStream: StreamKind = {
  name: 'console',
  path: /^\/v1\/instances\/([^/?]{1,64})\/vm\/console\/stream(?:\?|$)/,
  reauthorise_ms: 15_000,
  half_open: false,
  admit: async ({ db }, request, id) => {
    const query = new URL(request.url ?? '', 'http://console').searchParams;
    const holder = await consumeConsoleTicket(db, id, query.get('ticket') ?? '');
    return { holder, call: ({ instance_id, vm_id }) => ({ kind: 'console', instance_id, vm_id }) };
  },
  place: consolePlace,
};

const DEFAULT_TAIL_KIB = 64;
const MAX_TAIL_KIB = 1024;

const ConsoleTicket = named('ConsoleTicket', {
  ticket: Type.String({
    description: 'Shown only once; valid for one connection',
    examples: ['berth_cons_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti'],
  }),
  expires_at: Time,
});

export function registerVmConsole(app: App, context: AppContext): void {
  registerLog(app, context);
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/console/ticket',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'createConsoleTicket',
      summary: 'Create a ticket for the live serial console',
      description: `A ticket opens one WebSocket, \`GET /v1/instances/{id}/vm/console/stream?ticket=…\`, within ${TICKET_SECONDS} s. Messages in both directions, text or binary, are the bytes of the serial line; Enter gets a root shell. The server closes with 1000 when the VM ends, and with 1008 when the credential that created the ticket ends: a key by revocation, expiry or rotation (after its grace period), a session when it ends, not when its token is refreshed. A reader that takes nothing for a while is disconnected. The VM must be starting, running or stopping; otherwise 409.`,
      tags: ['VM'],
      params: InstanceParams,
      body: EmptyBody,
      response: { 201: ConsoleTicket },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const mutation = { action: 'vm.console' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const { ticket, expires_at } = await issueConsoleTicket(tx, principal, id);
        return { status: 201, body: { ticket, expires_at: rfc3339(expires_at) }, target: id };
      });
      return reply.status(201).send(body);
    },
  });
}

function registerLog(app: App, { db, host_calls }: AppContext): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/vm/console',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'getConsoleLog',
      summary: 'Get the end of the serial console log',
      description:
        'The output of this boot and of earlier boots on the same host, which keeps one to two MiB. It is raw: terminal control characters are included. With `timestamps=true` each line begins with a time in RFC 3339 (UTC, exact to 0.1 s) and a space, or with `- ` where the time is not known; `tail_kib` then includes the times.',
      tags: ['VM'],
      params: InstanceParams,
      querystring: closed({
        tail_kib: Type.Optional(
          wholeNumber(
            { minimum: 1, maximum: MAX_TAIL_KIB, default: DEFAULT_TAIL_KIB },
            'How much of the end of the log',
          ),
        ),
        timestamps: Type.Optional(
          oneOf(['true', 'false'], {
            default: 'false',
            description: 'Puts in front of each line the time at which it began to arrive, and a space',
          }),
        ),
      }),
      response: { 200: plainText() },
    },
    handler: async (request, reply) => {
      const tail_kib = Number(request.query.tail_kib ?? DEFAULT_TAIL_KIB);
      if (tail_kib < 1 || tail_kib > MAX_TAIL_KIB) throw invalid('tail_kib', `must be 1 to ${MAX_TAIL_KIB}`);
      const row = await findInstance(db, principalOf(request).org_id, instanceId(request.params));
      if (!row) throw new AppError('NOT_FOUND');
      const timestamps = request.query.timestamps === 'true';
      const tail = { max_bytes: tail_kib * 1024, timestamps };
      const text = await readConsoleLog(host_calls, row, tail, disconnectSignal(reply));
      return reply.type('text/plain; charset=utf-8').send(text as never);
    },
  });
}

function plainText(): TSchema {
  const schema = Type.String({ maxLength: MAX_TAIL_KIB * 1024 });
  return { description: 'The log.', content: { 'text/plain': { schema } } } as never;
}
