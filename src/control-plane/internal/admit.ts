/** Who calls the internal API: a host's agent or an ingress, each known by its token, which is valid for its own calls only. */
import type { IncomingHttpHeaders } from 'node:http';
import { protocolOf, refusalOf } from '../../protocol/protocol.ts';
import { AppError } from '../../shared/errors.ts';
import type { HostId, IngressId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { findIngressByToken, setIngressProtocol } from '../fleet/control-plane-store.ts';
import { findHostByJoinToken, findHostByToken } from '../fleet/credential-store.ts';
import { setProtocol } from '../fleet/host-store.ts';
import { hashToken } from '../identity/tokens.ts';

export interface CallingHost {
  readonly id: HostId;
  /** On another machine. */
  readonly remote: boolean;
  /** It came with the credential that replaces the present one. */
  readonly is_next: boolean;
}

export interface CallingIngress {
  readonly id: IngressId;
  /** The host of the same machine, whose VMs it dials itself; null: it is on another machine. */
  readonly host_id: HostId | null;
}

/** The caller, and why it is refused. */
interface Admitted<Caller> {
  readonly caller: Caller;
  readonly refusal: string | null;
}

/** `far`: it came over TLS. `joins`: with a join token. Keeps the caller's protocol version for `berth host ls`. @throws AppError UNAUTHENTICATED */
export async function admitHost(
  db: Db,
  headers: IncomingHttpHeaders,
  far: boolean,
  joins = false,
): Promise<Admitted<CallingHost>> {
  const token_hash = tokenHashIn(headers);
  const find = joins ? findHostByJoinToken : findHostByToken;
  const host = token_hash && (await find(db, token_hash));
  // The token of this machine's host is valid on the unix socket only, and that of any other host only over TLS.
  if (!host || far !== host.remote) throw new AppError('UNAUTHENTICATED');
  const { id, remote, is_next } = host;
  const protocol = protocolOf(headers);
  if (protocol !== host.protocol) await setProtocol(db, id, protocol);
  return { caller: { id, remote, is_next }, refusal: refusalOf(protocol) };
}

/** The same for an ingress. */
export async function admitIngress(
  db: Db,
  headers: IncomingHttpHeaders,
  far: boolean,
): Promise<Admitted<CallingIngress>> {
  const token_hash = tokenHashIn(headers);
  const ingress = token_hash && (await findIngressByToken(db, token_hash));
  if (!ingress || far !== (ingress.host_id === null)) throw new AppError('UNAUTHENTICATED');
  const { id, host_id } = ingress;
  const protocol = protocolOf(headers);
  if (protocol !== ingress.protocol) await setIngressProtocol(db, id, protocol);
  return { caller: { id, host_id }, refusal: refusalOf(protocol) };
}

export function tokenHashIn(headers: IncomingHttpHeaders): Buffer | undefined {
  const token = /^Bearer (\S{1,200})$/.exec(headers.authorization ?? '')?.[1];
  return token === undefined ? undefined : hashToken(token);
}
