/**
 * Joins a caller's WebSocket with a stream that the agent of the VM's host opens, to a console, a TCP port or an exec.
 * console-routes.ts, forward-stream.ts and execs/exec-stream.ts decide who may open which stream.
 *
 * - Host and Origin are checked as for any request.
 * - Back-pressure works in both directions. A caller that does not answer pings is disconnected.
 * - The caller's credential is reauthorised every few seconds. If that fails, the stream closes.
 * - An open stream counts as use of the VM: the idle timeout begins when the stream closes.
 * - The number of open streams is limited, for each organisation and for the process.
 */
import type { IncomingMessage } from 'node:http';
import type { Duplex } from 'node:stream';
import type { FastifyInstance } from 'fastify';
import { type WebSocket, WebSocketServer } from 'ws';
import type { HostCall } from '../../protocol/host-calls.ts';
import { AppError, messageOf } from '../../shared/errors.ts';
import { type ExecId, type InstanceId, isId, newRequestId, type OrgId } from '../../shared/ids.ts';
import { inWork, traceContextOf } from '../../shared/tracing.ts';
import type { AppContext } from '../context.ts';
import type { Db } from '../db/pool.ts';
import { execStream } from '../execs/exec-stream.ts';
import { CLOSE, relayWebSocket } from '../http/connections.ts';
import { refuseUpgrade } from '../http/errors.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import type { KnownHosts } from '../http/server.ts';
import type { KnownCredential } from '../identity/authenticate.ts';
import type { OpenStreams } from '../organisations/open-streams.ts';
import { consoleStream } from './console-routes.ts';
import type { CommandTarget } from './exec-routes.ts';
import { forwardStream } from './forward-stream.ts';

/** Longer than a host that stands still is waited for, which gives a better reason. */
const OPEN_WITHIN_MS = 30_000;
/** A peer that has answered no ping for this long is gone. */
const SILENT_MS = 30_000;
const MESSAGE_BYTES = 64 * 1024;

/** Whom an open stream stands for. */
export interface StreamHolder {
  readonly credential: KnownCredential;
  readonly org_id: OrgId;
  readonly instance_id: InstanceId;
  /** Of a stream to an exec. */
  readonly exec?: { readonly id: ExecId; readonly may_write: boolean };
}

export interface OpenedStream {
  readonly holder: StreamHolder;
  readonly call: (place: CommandTarget) => HostCall;
  /** Joins both sides; absent: the bytes pass through. */
  readonly join?: (client: WebSocket, line: Duplex) => void;
}

export type AdmitContext = Pick<AppContext, 'db' | 'hub' | 'log'> & { readonly limits: RateLimits };

/** A kind of stream, by the path of its upgrade. */
export interface StreamKind {
  readonly name: string;
  /** Its first group is the instance's id. */
  readonly path: RegExp;
  readonly reauthorise_ms: number;
  /** The peers of TCP end one direction before the other. */
  readonly half_open: boolean;
  /** Authenticates the request. @throws AppError */
  readonly admit: (
    context: AdmitContext,
    request: IncomingMessage,
    id: InstanceId,
    ip: string,
  ) => Promise<OpenedStream>;
  /** Where the VM runs, if the holder may still use it, which also marks it as used. @throws AppError */
  readonly place: (db: Db, holder: StreamHolder, ip: string) => Promise<CommandTarget>;
}

const KINDS: readonly StreamKind[] = [consoleStream, forwardStream, execStream];

/** Whether a request for an upgrade is one for a guest. Any other is served as an ordinary request. */
export function isGuestStream(request: Pick<IncomingMessage, 'url' | 'headers'>): boolean {
  return kindOf(request) !== undefined && request.headers.upgrade?.toLowerCase() === 'websocket';
}

function kindOf({ url = '' }: Pick<IncomingMessage, 'url'>): StreamKind | undefined {
  return KINDS.find(({ path }) => path.test(url));
}

type Context = Pick<AppContext, 'db' | 'hub' | 'host_calls' | 'log' | 'heartbeat_ms'> & {
  readonly known_hosts: KnownHosts;
  readonly limits: RateLimits;
};

export class GuestStreams {
  readonly #context: Context;
  readonly #server = new WebSocketServer({
    noServer: true,
    maxPayload: MESSAGE_BYTES,
    perMessageDeflate: false,
    clientTracking: true,
  });

  readonly #open_streams: OpenStreams;
  readonly #ids = new WeakMap<IncomingMessage, string>();

  /** `ipOf`: the caller's address, determined as Fastify does. */
  constructor(
    app: FastifyInstance,
    context: Context,
    open_streams: OpenStreams,
    ipOf: (request: IncomingMessage) => string,
  ) {
    this.#context = context;
    this.#open_streams = open_streams;
    app.server.on('upgrade', (request: IncomingMessage, socket: Duplex, head: Buffer) => {
      const request_id = newRequestId();
      this.#ids.set(request, request_id);
      socket.on('error', () => socket.destroy());
      const caller = traceContextOf(request.headers);
      inWork({ name: 'open guest stream', kind: 'server', context: { ...caller, request_id } }, () =>
        this.#accept(request, socket, head, ipOf(request)),
      ).catch((error: unknown) => refuseUpgrade(error, socket, request_id, context.log));
    });
    this.#server.on('headers', (headers, request) => {
      headers.push(`X-Request-Id: ${this.#ids.get(request)}`);
    });
    this.#server.on('wsClientError', ({ message }, socket) => {
      refuseUpgrade(
        new AppError('INVALID_REQUEST', { message: `${message}.` }),
        socket,
        newRequestId(),
        context.log,
      );
    });
    app.addHook('preClose', async () => {
      for (const each of this.#server.clients) each.close(CLOSE.going_away, 'the server is closing');
      this.#server.close();
    });
  }

  async #accept(request: IncomingMessage, socket: Duplex, head: Buffer, ip: string): Promise<void> {
    const { db, host_calls, log, known_hosts } = this.#context;
    known_hosts.requireHost(request);
    known_hosts.requireOwnOrigin(request);
    const kind = kindOf(request);
    const id = kind?.path.exec(request.url ?? '')?.[1] ?? '';
    if (!kind || !isId('inst', id)) throw new AppError('NOT_FOUND');
    const { holder, call, join } = await kind.admit(this.#context, request, id, ip);
    const place = await kind.place(db, holder, ip);
    // The caller has disconnected.
    if (socket.destroyed) return;
    const release = await this.#open_streams.open(holder.org_id);
    if (socket.destroyed) return release();
    socket.once('close', release);
    const gone = new AbortController();
    socket.once('close', () => gone.abort());
    const line = await host_calls.open(place.host_id, call(place), OPEN_WITHIN_MS, gone.signal);
    let upgraded = false;
    this.#server.handleUpgrade(request, socket, head, (client) => {
      upgraded = true;
      const { instance_id } = holder;
      const request_id = this.#ids.get(request);
      log.info({ instance_id, credential: holder.credential.id, request_id }, `a ${kind.name} was opened`);
      if (join) join(client, line);
      else relayWebSocket(client, line, kind);
      this.#watch(client, kind, holder, ip);
    });
    // The caller has disconnected, or its handshake is invalid.
    if (!upgraded) line.destroy();
  }

  #watch(client: WebSocket, kind: StreamKind, holder: StreamHolder, ip: string): void {
    let last_pong_ms = performance.now();
    client.on('pong', () => {
      last_pong_ms = performance.now();
    });
    let checking = false;
    const check = async (): Promise<void> => {
      if (performance.now() - last_pong_ms > SILENT_MS) return client.terminate();
      client.ping();
      if (checking) return;
      checking = true;
      try {
        await kind.place(this.#context.db, holder, ip);
      } catch (error) {
        // If the database is unavailable, the credential may still be valid.
        if (!(error instanceof AppError)) return;
        const over = error.code === 'VM_NOT_RUNNING' || error.code === 'CONFLICT';
        client.close(over ? CLOSE.over : CLOSE.revoked, messageOf(error).slice(0, 120));
      } finally {
        checking = false;
      }
    };
    const timer = setInterval(() => void check(), this.#context.heartbeat_ms ?? kind.reauthorise_ms);
    client.on('close', () => clearInterval(timer));
  }
}
