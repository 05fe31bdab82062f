/**
 * The internal API's client: JSON over HTTP, by a unix socket or a URL, with the host's token. Calls are
 * bounded in time; a failure to reach the control plane is {@link ControlPlaneUnavailable}, to be tried again.
 */
import type { Duplex } from 'node:stream';
import type { TLSSocket } from 'node:tls';
import type { TSchema } from 'typebox';
import { Agent, buildConnector, type Dispatcher, request, upgrade } from 'undici';
import type { InstanceId } from '../lib/ids.ts';
import { untrustedText } from '../lib/untrusted-text.ts';
import { problemOfAnswer } from './check.ts';
import {
  type AnswerRequest,
  type CallsRequest,
  type CallsResponse,
  CONSOLE_PROTOCOL,
  consoleStreamPath,
  tunnelPath,
} from './host-calls.ts';
import type {
  FindImageRequest,
  FoundImage,
  Heartbeat,
  ImageRegistration,
  OfferRequest,
  OfferResponse,
} from './host-types.ts';
import type {
  ActivityReport,
  RoutesRequest,
  RoutesResponse,
  WakeRequest,
  WakeResponse,
} from './ingress-types.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER, ProtocolRefusal } from './protocol.ts';
import { type AgentRoute, ROUTES } from './routes.ts';
import type { Of } from './schemas.ts';
import type {
  BootOrderReport,
  CommitRequest,
  CommitResponse,
  DataKeysRequest,
  DataKeysResponse,
  DiskHead,
  FlushFailure,
  FlushReport,
  KeysReport,
  LeaseRequest,
  LeaseResponse,
  LineageRequest,
  LineageResponse,
  LoginsReport,
  ObjectStoreResponse,
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

/** The control plane speaks another version, and says which. VMs run on until one of the two is upgraded. */
export class ProtocolRefused extends ControlPlaneUnavailable {
  override name = 'ProtocolRefused';
}

/** The instance's newest VM is on another host: nothing of its disk is told here any more. */
export class DiskElsewhere extends Error {
  override name = 'DiskElsewhere';
}

/** What the control plane said of versions, as it is first heard and whenever that changes. */
export interface Negotiated {
  readonly ours: number;
  /** null: it did not say. */
  readonly theirs: number | null;
  /** Why it does not serve us; null: it does. */
  readonly refusal: string | null;
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
  readonly #onNegotiated: (found: Negotiated) => void;
  #negotiated: Negotiated | null = null;

  constructor(
    { address, token, fingerprint }: ControlPlaneAddress,
    onNegotiated: (found: Negotiated) => void = () => undefined,
  ) {
    this.#onNegotiated = onNegotiated;
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

  heartbeat(body: Heartbeat) {
    return this.#post(ROUTES.heartbeat, body);
  }

  renewLease(body: LeaseRequest, timeout_ms: number, signal: AbortSignal): Promise<LeaseResponse> {
    return this.#post(ROUTES.lease, body, timeout_ms, signal, this.#lease);
  }

  poll(body: PollRequest, signal: AbortSignal): Promise<PollResponse> {
    return this.#post(ROUTES.poll, body, POLL_HOLD_MS + 10_000, signal);
  }

  report(body: Report): Promise<ReportResponse> {
    return this.#post(ROUTES.report, withFitMessages(body));
  }

  reportFlush(body: FlushReport): Promise<ReportResponse> {
    return this.#post(ROUTES.flush, withFitMessages(body));
  }

  reportFlushFailure(body: FlushFailure): Promise<ReportResponse> {
    return this.#post(ROUTES.flushFailure, withFitMessages(body));
  }

  reportKeys(body: KeysReport): Promise<ReportResponse> {
    return this.#post(ROUTES.keys, body);
  }

  reportLogins(body: LoginsReport): Promise<ReportResponse> {
    return this.#post(ROUTES.logins, body);
  }

  commit(body: CommitRequest): Promise<CommitResponse> {
    // Of a large disk it is 30 MiB, and as many rows as segments.
    return this.#post(ROUTES.commit, body, 15_000 + body.segments.length);
  }

  /** What the database knows of the head that an overlay was last known to equal. */
  lineage(body: LineageRequest): Promise<LineageResponse> {
    return this.#post(ROUTES.lineage, body);
  }

  /** The script for a first boot. */
  userData(body: UserDataRequest): Promise<UserDataResponse> {
    return this.#post(ROUTES.userData, body);
  }

  userDataGiven(body: UserDataRequest): Promise<ReportResponse> {
    return this.#post(ROUTES.userDataGiven, body);
  }

  /** The head of an instance's disk, for the host of its newest VM; null when there is no such instance. @throws DiskElsewhere */
  async head(instance_id: InstanceId): Promise<DiskHead | null> {
    const answer = await this.#post(ROUTES.head, { instance_id });
    if (answer.outcome === 'elsewhere') throw new DiskElsewhere('another host has the disk');
    return answer.outcome === 'head' ? answer.head : null;
  }

  /** What the disk's new objects are to be encrypted with from now on. */
  dataKeys(body: DataKeysRequest): Promise<DataKeysResponse> {
    return this.#post(ROUTES.dataKeys, body);
  }

  /** Which object store the control plane uses. */
  objectStore(): Promise<ObjectStoreResponse> {
    return this.#post(ROUTES.objectStore, {});
  }

  offerImages(body: OfferRequest): Promise<OfferResponse> {
    return this.#post(ROUTES.offerImages, body);
  }

  registerImage(body: ImageRegistration): Promise<ReportResponse> {
    return this.#post(ROUTES.registerImage, body);
  }

  /** An image in the object store; null when there is none. */
  findImage(body: FindImageRequest): Promise<FoundImage | null> {
    return this.#post(ROUTES.findImage, body);
  }

  bootOrder(body: BootOrderReport): Promise<ReportResponse> {
    return this.#post(ROUTES.bootOrder, body);
  }

  routes(body: RoutesRequest, signal: AbortSignal): Promise<RoutesResponse> {
    return this.#post(ROUTES.routes, body, POLL_HOLD_MS + 10_000, signal);
  }

  wake(body: WakeRequest, signal: AbortSignal): Promise<WakeResponse> {
    return this.#post(ROUTES.wake, body, 15_000, signal);
  }

  async reportActivity(body: ActivityReport, signal: AbortSignal): Promise<void> {
    await this.#post(ROUTES.activity, body, 15_000, signal);
  }

  /** What callers wait for of this host; held open until there is something. */
  calls(body: CallsRequest, signal: AbortSignal): Promise<CallsResponse> {
    return this.#post(ROUTES.calls, body, POLL_HOLD_MS + 10_000, signal);
  }

  answerCall(body: AnswerRequest): Promise<ReportResponse> {
    return this.#post(ROUTES.answerCall, body.answer.error ? withFitMessages(body) : body);
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
      headers: this.#headers(),
      protocol: CONSOLE_PROTOCOL,
      signal: AbortSignal.timeout(STREAM_OPEN_MS),
    });
    return socket;
  }

  #headers() {
    return { authorization: `Bearer ${this.#token}`, [PROTOCOL_HEADER]: String(AGENT_PROTOCOL) };
  }

  async close(): Promise<void> {
    await this.#streams.destroy();
    await this.#lease.destroy();
    await this.#agent.destroy();
  }

  async #post<Request extends TSchema, Response extends TSchema>(
    { path, response: schema }: AgentRoute<Request, Response>,
    body: unknown,
    timeout_ms = 15_000,
    signal?: AbortSignal,
    dispatcher = this.#agent,
  ): Promise<Of<Response>> {
    const bounded = AbortSignal.any([AbortSignal.timeout(timeout_ms), ...(signal ? [signal] : [])]);
    let text: string;
    let response: Dispatcher.ResponseData;
    try {
      response = await request(this.#origin + path, {
        method: 'POST',
        dispatcher,
        headers: { ...this.#headers(), 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: bounded,
        headersTimeout: timeout_ms,
        bodyTimeout: timeout_ms,
      });
      text = await response.body.text();
    } catch (cause) {
      throw new ControlPlaneUnavailable(`the control plane does not answer ${path}`, { cause });
    }
    const { statusCode: status } = response;
    const refusal = status === 426 ? refusalIn(text) : null;
    this.#note(response.headers[PROTOCOL_HEADER], refusal);
    if (refusal !== null) throw new ProtocolRefused(refusal);
    if (status >= 500) throw new ControlPlaneUnavailable(`the control plane answers ${path} with ${status}`);
    if (status !== 200)
      throw new Error(`the control plane refuses ${path} with ${status}: ${text.slice(0, 300)}`);
    const answer = parsed(text);
    const problem = problemOfAnswer(schema, answer);
    if (problem !== null)
      throw new ControlPlaneUnavailable(`the answer to ${path} cannot be read: ${problem}`);
    return answer as Of<Response>;
  }

  #note(header: string | string[] | undefined, refusal: string | null): void {
    const theirs = typeof header === 'string' && /^[0-9]{1,9}$/.test(header) ? Number(header) : null;
    const before = this.#negotiated;
    if (before !== null && before.theirs === theirs && before.refusal === refusal) return;
    this.#negotiated = { ours: AGENT_PROTOCOL, theirs, refusal };
    this.#onNegotiated(this.#negotiated);
  }
}

/** Messages come from everywhere, guests too: they are cut to what the control plane takes. */
function withFitMessages<T>(body: T): T {
  const text = JSON.stringify(body, (key, value) =>
    key === 'message' && typeof value === 'string' ? untrustedText(value) : value,
  );
  return JSON.parse(text) as T;
}

/** undefined where it is no JSON, which fits no schema. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function refusalIn(text: string): string {
  const body = parsed(text);
  return problemOfAnswer(ProtocolRefusal, body) === null
    ? (body as Of<typeof ProtocolRefusal>).error.message
    : 'the control plane speaks another version of the agent protocol';
}
