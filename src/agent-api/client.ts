/**
 * The internal API's client: JSON over HTTP, by a unix socket or a URL, with the host's token. Calls are
 * bounded in time; a failure to reach the control plane is {@link ControlPlaneUnavailable}, to be tried again.
 */
import type { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import { Agent, buildConnector, request, upgrade } from 'undici';
import type { InstanceId } from '../lib/ids.ts';
import {
  type AnswerRequest,
  type CallsRequest,
  type CallsResponse,
  CONSOLE_PROTOCOL,
  consoleStreamPath,
  tunnelPath,
} from './host-calls.ts';
import type {
  ActivityReport,
  RoutesRequest,
  RoutesResponse,
  WakeRequest,
  WakeResponse,
} from './ingress-types.ts';
import type {
  BootOrderReport,
  CommitRequest,
  CommitResponse,
  DiskHead,
  FindImageRequest,
  FlushFailure,
  FlushReport,
  FoundImage,
  Heartbeat,
  HeartbeatResponse,
  ImageRegistration,
  KeysReport,
  LeaseRequest,
  LeaseResponse,
  LineageRequest,
  LineageResponse,
  LoginsReport,
  ObjectStoreResponse,
  OfferRequest,
  OfferResponse,
  PollRequest,
  PollResponse,
  Report,
  ReportResponse,
  UserDataRequest,
  UserDataResponse,
} from './types.ts';

export class ControlPlaneUnavailable extends Error {
  override name = 'ControlPlaneUnavailable';
}

/** How long the server holds a poll open. */
export const POLL_HOLD_MS = 20_000;
const STREAM_OPEN_MS = 5_000;

export interface ControlPlaneAddress {
  /** `unix:/path/control.sock` or `http(s)://host:port`. */
  readonly address: string;
  readonly token: string;
  /** Of the certificate that the control plane must show (`X509Certificate.fingerprint256`). */
  readonly fingerprint?: string;
}

/** Nobody else is spoken to, and no authority is believed. */
function pinnedConnector(fingerprint: string): buildConnector.connector {
  const connect = buildConnector({ rejectUnauthorized: false, maxCachedSessions: 0, minVersion: 'TLSv1.3' });
  return (options, callback) =>
    connect(options, (...[error, socket]) => {
      if (error) return callback(error, null);
      if ((socket as TLSSocket).getPeerX509Certificate?.()?.fingerprint256 === fingerprint) {
        return callback(null, socket);
      }
      socket.destroy();
      callback(new Error('the control plane shows another certificate than the one in the token'), null);
    });
}

export class ControlPlaneClient {
  readonly #origin: string;
  readonly #token: string;
  readonly #agent: Agent;
  /** Of renewals alone: they wait for nothing else that is said. */
  readonly #lease: Agent;
  readonly #streams: Agent;

  constructor({ address, token, fingerprint }: ControlPlaneAddress) {
    const socket = address.startsWith('unix:') ? address.slice('unix:'.length) : undefined;
    this.#origin = socket === undefined ? address.replace(/\/$/, '') : 'http://control-plane';
    this.#token = token;
    const plain = socket === undefined ? {} : { socketPath: socket };
    const connect = fingerprint === undefined ? plain : pinnedConnector(fingerprint);
    this.#agent = new Agent({ connect, connections: 32 });
    this.#lease = new Agent({ connect, connections: 1 });
    // A connection each: they are not given back.
    this.#streams = new Agent({ connect });
  }

  heartbeat(body: Heartbeat): Promise<HeartbeatResponse> {
    return this.#post('/internal/v1/heartbeat', body);
  }

  renewLease(body: LeaseRequest, timeout_ms: number, signal: AbortSignal): Promise<LeaseResponse> {
    return this.#post('/internal/v1/lease', body, timeout_ms, signal, this.#lease);
  }

  poll(body: PollRequest, signal: AbortSignal): Promise<PollResponse> {
    return this.#post('/internal/v1/poll', body, POLL_HOLD_MS + 10_000, signal);
  }

  report(body: Report): Promise<ReportResponse> {
    return this.#post('/internal/v1/report', body);
  }

  reportFlush(body: FlushReport): Promise<ReportResponse> {
    return this.#post('/internal/v1/flush', body);
  }

  reportFlushFailure(body: FlushFailure): Promise<ReportResponse> {
    return this.#post('/internal/v1/flush-failure', body);
  }

  reportKeys(body: KeysReport): Promise<ReportResponse> {
    return this.#post('/internal/v1/keys', body);
  }

  reportLogins(body: LoginsReport): Promise<ReportResponse> {
    return this.#post('/internal/v1/logins', body);
  }

  commit(body: CommitRequest): Promise<CommitResponse> {
    // Of a large disk it is 30 MiB, and as many rows as segments.
    return this.#post('/internal/v1/commit', body, 15_000 + body.segments.length);
  }

  /** What the database knows of the head that an overlay was last known to equal. */
  lineage(body: LineageRequest): Promise<LineageResponse> {
    return this.#post('/internal/v1/lineage', body);
  }

  /** The script for a first boot. */
  userData(body: UserDataRequest): Promise<UserDataResponse> {
    return this.#post('/internal/v1/user-data', body);
  }

  userDataGiven(body: UserDataRequest): Promise<ReportResponse> {
    return this.#post('/internal/v1/user-data-given', body);
  }

  /** The head of an instance's disk; null when there is no such instance. */
  head(instance_id: InstanceId): Promise<DiskHead | null> {
    return this.#post('/internal/v1/head', { instance_id });
  }

  /** Which object store the control plane uses. */
  objectStore(): Promise<ObjectStoreResponse> {
    return this.#post('/internal/v1/object-store', {});
  }

  offerImages(body: OfferRequest): Promise<OfferResponse> {
    return this.#post('/internal/v1/images/offer', body);
  }

  registerImage(body: ImageRegistration): Promise<ReportResponse> {
    return this.#post('/internal/v1/images/register', body);
  }

  /** An image in the object store; null when there is none. */
  findImage(body: FindImageRequest): Promise<FoundImage | null> {
    return this.#post('/internal/v1/images/find', body);
  }

  bootOrder(body: BootOrderReport): Promise<ReportResponse> {
    return this.#post('/internal/v1/boot-order', body);
  }

  routes(body: RoutesRequest, signal: AbortSignal): Promise<RoutesResponse> {
    return this.#post('/internal/v1/routes', body, POLL_HOLD_MS + 10_000, signal);
  }

  wake(body: WakeRequest, signal: AbortSignal): Promise<WakeResponse> {
    return this.#post('/internal/v1/wake', body, 15_000, signal);
  }

  async reportActivity(body: ActivityReport, signal: AbortSignal): Promise<void> {
    await this.#post('/internal/v1/activity', body, 15_000, signal);
  }

  /** What callers wait for of this host; held open until there is something. */
  calls(body: CallsRequest, signal: AbortSignal): Promise<CallsResponse> {
    return this.#post('/internal/v1/calls', body, POLL_HOLD_MS + 10_000, signal);
  }

  answerCall(body: AnswerRequest): Promise<ReportResponse> {
    return this.#post('/internal/v1/calls/answer', body);
  }

  /** The stream that answers a call for a console or a way to SSH; whoever has it ends it. */
  openConsole(call_id: string): Promise<Duplex> {
    return this.#openStream(consoleStreamPath(call_id));
  }

  /** For the ingress: the way to the sshd of a VM on another host, half-open; whoever has it ends it. */
  async openTunnel(instance_id: InstanceId): Promise<Duplex> {
    const stream = await this.#openStream(tunnelPath(instance_id));
    stream.allowHalfOpen = true;
    return stream;
  }

  async #openStream(path: string): Promise<Duplex> {
    const { socket } = await upgrade(this.#origin + path, {
      dispatcher: this.#streams,
      headers: { authorization: `Bearer ${this.#token}` },
      protocol: CONSOLE_PROTOCOL,
      signal: AbortSignal.timeout(STREAM_OPEN_MS),
    });
    return socket;
  }

  async close(): Promise<void> {
    await this.#streams.destroy();
    await this.#lease.destroy();
    await this.#agent.destroy();
  }

  async #post<T>(
    path: string,
    body: unknown,
    timeout_ms = 15_000,
    signal?: AbortSignal,
    dispatcher = this.#agent,
  ): Promise<T> {
    const bounded = AbortSignal.any([AbortSignal.timeout(timeout_ms), ...(signal ? [signal] : [])]);
    let text: string;
    let status: number;
    try {
      const response = await request(this.#origin + path, {
        method: 'POST',
        dispatcher,
        headers: { authorization: `Bearer ${this.#token}`, 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: bounded,
        headersTimeout: timeout_ms,
        bodyTimeout: timeout_ms,
      });
      status = response.statusCode;
      text = await response.body.text();
    } catch (cause) {
      throw new ControlPlaneUnavailable(`the control plane does not answer ${path}`, { cause });
    }
    if (status >= 500) throw new ControlPlaneUnavailable(`the control plane answers ${path} with ${status}`);
    if (status !== 200)
      throw new Error(`the control plane refuses ${path} with ${status}: ${text.slice(0, 300)}`);
    return JSON.parse(text) as T;
  }
}
