/**
 * The serial console: its log, and tickets for the live line. A browser's WebSocket cannot send a credential, so a ticket
 * stands for one: single use, within a minute. Access to the line is root access to the guest.
 */
import type { ConsoleLogResult } from '../../protocol/host-calls.ts';
import { AppError } from '../../shared/errors.ts';
import type { ApiKeyId, ExecId, HostId, InstanceId, OrgId, SessionId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';
import type { HostCalls } from '../fleet/host-calls.ts';
import { type KnownCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { CONSOLE_PREFIX, hashToken, newToken, type TokenPrefix, tokenPrefix } from '../identity/tokens.ts';
import { lockInstanceOf, refuseDeleting } from '../instances/change-instance.ts';
import { findInstance, type InstanceRow } from '../instances/store.ts';
import { insertTicket, takeTicket } from './console-ticket-store.ts';
import { type CommandPlace, placeOf } from './exec-command.ts';
import type { StreamKind } from './guest-streams.ts';
import { remedy, type VmState } from './model.ts';
import { markUsed } from './store.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const LOG_WITHIN_MS = 30_000;
/** The states with a QEMU process. A guest that boots or shuts down is when its console helps most. */
const WITH_MACHINE: readonly VmState[] = ['starting', 'running', 'restarting', 'suspending', 'stopping'];

/** The end of the log, earlier boots included; '' when the instance never ran. @throws AppError UNAVAILABLE */
export async function readConsoleLog(
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
export async function issueConsoleTicket(
  tx: Tx,
  principal: Principal,
  id: InstanceId,
): Promise<{ ticket: string; expires_at: Date }> {
  requireMachine(await lockInstanceOf(tx, principal, id));
  await markUsed(tx, id);
  return issueTicket(tx, principal, { prefix: CONSOLE_PREFIX, instance_id: id, exec_id: null });
}

/** What a ticket is for; no exec: the console. */
export interface TicketPlace {
  readonly prefix: TokenPrefix;
  readonly instance_id: InstanceId;
  readonly exec_id: ExecId | null;
}

/** A ticket for a stream to the instance's guest. */
export async function issueTicket(
  tx: Tx,
  { credential, org_id }: Principal,
  { prefix, instance_id, exec_id }: TicketPlace,
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
  { prefix, instance_id: id, exec_id }: TicketPlace,
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
async function consolePlace(db: Db, holder: ConsoleHolder, ip: string): Promise<CommandPlace> {
  const { scopes } = await reauthenticate(db, holder.credential, holder.org_id, ip);
  if (!scopes.has('vm:write')) throw new AppError('FORBIDDEN');
  const row = await findInstance(db, holder.org_id, holder.instance_id);
  if (!row) throw new AppError('NOT_FOUND');
  requireMachine(row);
  await markUsed(db, row.id);
  return placeOf(row);
}

/** @throws AppError CONFLICT, VM_NOT_RUNNING */
export function requireMachine(row: InstanceRow): void {
  refuseDeleting(row);
  const state = row.state ?? 'stopped';
  if (!WITH_MACHINE.includes(state)) throw new AppError('VM_NOT_RUNNING', { message: remedy(state, 'exec') });
}

/** The live serial console. A browser's WebSocket cannot send a credential, so a ticket admits it. */

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
