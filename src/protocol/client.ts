/**
 * The client of the internal API, used by agents and ingresses. It sends JSON over HTTP, through a unix socket or a
 * URL, with the token of its host or ingress. Every call has a timeout. If the control plane cannot be reached, a call
 * throws {@link ControlPlaneUnavailable}, and the caller may repeat it. The repetition goes to the next control plane,
 * if the client knows several.
 */
import type { Duplex } from 'node:stream';
import type { TSchema } from 'typebox';
import { type Dispatcher, request, upgrade } from 'undici';
import type { InstanceId } from '../shared/ids.ts';
import { traceHeaders } from '../shared/tracing.ts';
import { untrustedText } from '../shared/untrusted-text.ts';
import { type ControlPlaneAccess, type ControlPlaneAddress, ControlPlanePlaces } from './control-planes.ts';
import { type AnswerRequest, CONSOLE_PROTOCOL, consoleStreamPath, tunnelPath } from './host-calls.ts';
import type { FoundImage } from './host-types.ts';
import type { ListedControlPlane } from './ingress-types.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER, ProtocolRefusal } from './protocol.ts';
import { type AgentRoute, ROUTES } from './routes.ts';
import { answerViolationOf, type Of } from './schemas.ts';
import type { DiskHead } from './types.ts';

type Body<Name extends keyof typeof ROUTES> = Of<(typeof ROUTES)[Name]['request']>;
type Answer<Name extends keyof typeof ROUTES> = Promise<Of<(typeof ROUTES)[Name]['response']>>;

export class ControlPlaneUnavailable extends Error {
  override name = 'ControlPlaneUnavailable';
}

/** The control plane does not speak our protocol version. VMs keep running until one of the two is upgraded. */
export class ProtocolRefused extends ControlPlaneUnavailable {
  override name = 'ProtocolRefused';
}

/** The token is unknown, revoked, or was used up. */
export class CredentialRefused extends Error {
  override name = 'CredentialRefused';
}

/** The control plane does not take this request, and will not take it again. */
export class RequestRefused extends Error {
  override name = 'RequestRefused';
}

/** The instance's newest VM is on another host, so the control plane does not return the head of its disk. */
export class DiskElsewhere extends Error {
  override name = 'DiskElsewhere';
}

/** The protocol versions, reported at the first answer and at each change. */
export interface Negotiated {
  readonly ours: number;
  /** Null when it sent none. */
  readonly theirs: number | null;
  /** Why it refuses us; null when it does not. */
  readonly refusal: string | null;
}

/** How long the server holds a poll open. */
export const POLL_HOLD_MS = 20_000;
const STREAM_OPEN_MS = 5_000;
const OPEN_PORT_MS = 8_000;
/** Too slow, too early, too many. */
const TRY_AGAIN: readonly number[] = [408, 425, 429];
/** Access that is not confirmed ends within 5 s: the ingress asks every 2 s. */
const AUTHORISE_MS = 2_500;

export class ControlPlaneClient {
  readonly #places: ControlPlanePlaces;
  readonly #token: () => string;
  readonly #onNegotiated: (found: Negotiated) => void;
  #negotiated: Negotiated | null = null;
  #answered_at_ms = Number.NEGATIVE_INFINITY;

  constructor(
    address: ControlPlaneAddress,
    onNegotiated: (found: Negotiated) => void = () => undefined,
    onLearned: (known: readonly ListedControlPlane[]) => void = () => undefined,
  ) {
    this.#onNegotiated = onNegotiated;
    const { token } = address;
    this.#token = typeof token === 'string' ? () => token : token;
    this.#places = new ControlPlanePlaces(address, onLearned);
  }

  /** Since the last good answer. */
  get silent_ms(): number {
    return performance.now() - this.#answered_at_ms;
  }

  /** With a join token as the client's token. */
  join(body: Body<'join'>): Answer<'join'> {
    return this.#post(ROUTES.join, body);
  }

  rotate(body: Body<'rotate'>): Answer<'rotate'> {
    return this.#post(ROUTES.rotate, body);
  }

  /** How many control planes it knows. */
  get control_planes(): number {
    return this.#places.count;
  }

  /** The live control planes, as an answer lists them. */
  learn(live: readonly ListedControlPlane[]): void {
    this.#places.learn(live);
  }

  async heartbeat(body: Body<'heartbeat'>): Answer<'heartbeat'> {
    const answer = await this.#post(ROUTES.heartbeat, body);
    this.learn(answer.control_planes ?? []);
    return answer;
  }

  renewLease(body: Body<'lease'>, timeout_ms: number, signal: AbortSignal): Answer<'lease'> {
    return this.#post(ROUTES.lease, body, timeout_ms, signal, 'lease');
  }

  poll(body: Body<'poll'>, signal: AbortSignal): Answer<'poll'> {
    return this.#poll(ROUTES.poll, body, signal);
  }

  report(body: Body<'report'>): Answer<'report'> {
    return this.#post(ROUTES.report, withBoundedMessages(body));
  }

  reportFlush(body: Body<'flush'>): Answer<'flush'> {
    return this.#post(ROUTES.flush, withBoundedMessages(body));
  }

  reportFlushFailure(body: Body<'flushFailure'>): Answer<'flushFailure'> {
    return this.#post(ROUTES.flushFailure, withBoundedMessages(body));
  }

  reportKeys(body: Body<'keys'>): Answer<'keys'> {
    return this.#post(ROUTES.keys, body);
  }

  reportLogins(body: Body<'logins'>): Answer<'logins'> {
    return this.#post(ROUTES.logins, body);
  }

  reportMinutes(body: Body<'minutes'>, signal: AbortSignal): Answer<'minutes'> {
    return this.#post(ROUTES.minutes, body, 15_000, signal);
  }

  reportDenied(body: Body<'denied'>): Answer<'denied'> {
    return this.#post(ROUTES.denied, body);
  }

  reportExecs(body: Body<'execs'>, signal: AbortSignal): Answer<'execs'> {
    return this.#post(ROUTES.execs, body, 15_000, signal);
  }

  commit(body: Body<'commit'>): Answer<'commit'> {
    // A large disk's commit has 30 MiB, and as many rows as segments.
    return this.#post(ROUTES.commit, body, 15_000 + body.segments.length);
  }

  lineage(body: Body<'lineage'>): Answer<'lineage'> {
    return this.#post(ROUTES.lineage, body);
  }

  reportUnknownVm(body: Body<'unknownVm'>): Answer<'unknownVm'> {
    return this.#post(ROUTES.unknownVm, body);
  }

  userData(body: Body<'userData'>): Answer<'userData'> {
    return this.#post(ROUTES.userData, body);
  }

  userDataGiven(body: Body<'userDataGiven'>): Answer<'userDataGiven'> {
    return this.#post(ROUTES.userDataGiven, body);
  }

  /** What the database knows of an instance's disk. */
  findHead(instance_id: InstanceId): Answer<'head'> {
    return this.#post(ROUTES.head, { instance_id });
  }

  /** The head of an instance's disk, for the host of its newest VM; null when it is deleted or unknown. @throws DiskElsewhere */
  async head(instance_id: InstanceId): Promise<DiskHead | null> {
    const answer = await this.findHead(instance_id);
    if (answer.outcome === 'elsewhere') throw new DiskElsewhere('another host has the disk');
    return answer.outcome === 'head' ? answer.head : null;
  }

  dataKeys(body: Body<'dataKeys'>): Answer<'dataKeys'> {
    return this.#post(ROUTES.dataKeys, body);
  }

  objectStore(): Answer<'objectStore'> {
    return this.#post(ROUTES.objectStore, {});
  }

  objectPermissions(body: Body<'objectPermissions'>): Answer<'objectPermissions'> {
    return this.#post(ROUTES.objectPermissions, body);
  }

  offerImages(body: Body<'offerImages'>): Answer<'offerImages'> {
    return this.#post(ROUTES.offerImages, body);
  }

  registerImage(body: Body<'registerImage'>): Answer<'registerImage'> {
    return this.#post(ROUTES.registerImage, body);
  }

  /** An image in the object store; null when there is none. */
  findImage(body: Body<'findImage'>): Promise<FoundImage | null> {
    return this.#post(ROUTES.findImage, body);
  }

  bootOrder(body: Body<'bootOrder'>): Answer<'bootOrder'> {
    return this.#post(ROUTES.bootOrder, body);
  }

  routes(body: Body<'routes'>, signal: AbortSignal): Answer<'routes'> {
    return this.#poll(ROUTES.routes, body, signal);
  }

  wake(body: Body<'wake'>, signal: AbortSignal): Answer<'wake'> {
    return this.#post(ROUTES.wake, body, 15_000, signal);
  }

  async reportActivity(body: Body<'activity'>, signal: AbortSignal): Promise<void> {
    const { control_planes } = await this.#post(ROUTES.activity, body, 15_000, signal);
    this.learn(control_planes ?? []);
  }

  openPort(body: Body<'openPort'>, signal: AbortSignal): Answer<'openPort'> {
    return this.#post(ROUTES.openPort, body, OPEN_PORT_MS, signal);
  }

  httpRoutes(body: Body<'httpRoutes'>, signal: AbortSignal): Answer<'httpRoutes'> {
    return this.#poll(ROUTES.httpRoutes, body, signal);
  }

  authoriseHttp(body: Body<'authoriseHttp'>, signal?: AbortSignal): Answer<'authoriseHttp'> {
    return this.#post(ROUTES.authoriseHttp, body, AUTHORISE_MS, signal);
  }

  redeemHttpTicket(body: Body<'redeemHttpTicket'>, signal?: AbortSignal): Answer<'redeemHttpTicket'> {
    return this.#post(ROUTES.redeemHttpTicket, body, AUTHORISE_MS, signal);
  }

  async reportHttp(body: Body<'reportHttp'>, signal: AbortSignal): Promise<void> {
    await this.#post(ROUTES.reportHttp, body, 15_000, signal);
  }

  calls(body: Body<'calls'>, signal: AbortSignal): Answer<'calls'> {
    return this.#poll(ROUTES.calls, body, signal);
  }

  answerCall(body: AnswerRequest): Answer<'answerCall'> {
    return this.#post(ROUTES.answerCall, body.answer.error ? withBoundedMessages(body) : body);
  }

  /** Opens the stream that answers a `console` or `ssh` call. The caller must end it. */
  openConsole(call_id: string): Promise<Duplex> {
    return this.#openStream(consoleStreamPath(call_id));
  }

  /** For the ingress: a half-open stream to the sshd of a VM on another host, or to a TCP port. The caller must end it. */
  async openTunnel(instance_id: InstanceId, port?: number): Promise<Duplex> {
    const stream = await this.#openStream(tunnelPath(instance_id, port));
    stream.allowHalfOpen = true;
    return stream;
  }

  async #openStream(path: string): Promise<Duplex> {
    const { origin, streams } = this.#places.current;
    const { socket } = await upgrade(origin + path, {
      dispatcher: streams,
      headers: this.#headers(),
      protocol: CONSOLE_PROTOCOL,
      signal: AbortSignal.timeout(STREAM_OPEN_MS),
    });
    return socket;
  }

  #headers() {
    const authorization = `Bearer ${this.#token()}`;
    return { authorization, [PROTOCOL_HEADER]: String(AGENT_PROTOCOL), ...traceHeaders() };
  }

  async close(): Promise<void> {
    await this.#places.close();
  }

  /** Ends early when the client goes on to another control plane. */
  #poll<Request extends TSchema, Response extends TSchema>(
    route: AgentRoute<Request, Response>,
    body: unknown,
    signal: AbortSignal,
  ): Promise<Of<Response>> {
    const left = this.#places.current.left.signal;
    return this.#post(route, body, POLL_HOLD_MS + 10_000, AbortSignal.any([signal, left]));
  }

  async #post<Request extends TSchema, Response extends TSchema>(
    { path, response: schema }: AgentRoute<Request, Response>,
    body: unknown,
    timeout_ms = 15_000,
    signal?: AbortSignal,
    through: 'agent' | 'lease' = 'agent',
  ): Promise<Of<Response>> {
    const place = this.#places.current;
    const bounded = AbortSignal.any([AbortSignal.timeout(timeout_ms), ...(signal ? [signal] : [])]);
    let text: string;
    let response: Dispatcher.ResponseData;
    try {
      response = await request(place.origin + path, {
        method: 'POST',
        dispatcher: place[through],
        headers: { ...this.#headers(), 'content-type': 'application/json' },
        body: JSON.stringify(body),
        signal: bounded,
        headersTimeout: timeout_ms,
        bodyTimeout: timeout_ms,
      });
      text = await response.body.text();
    } catch (cause) {
      if (through === 'lease') this.#places.forgetLeaseConnections();
      if (signal?.aborted !== true) this.#places.leave(place);
      throw new ControlPlaneUnavailable(`the control plane does not answer ${path}`, { cause });
    }
    const { statusCode: status } = response;
    this.#leaveAfter(status, path, place);
    const refusal = status === 426 ? refusalIn(text) : null;
    this.#note(response.headers[PROTOCOL_HEADER], refusal);
    if (refusal !== null) throw new ProtocolRefused(refusal);
    if (status >= 500) throw new ControlPlaneUnavailable(`the control plane answers ${path} with ${status}`);
    if (status === 401)
      throw new CredentialRefused(`the control plane refuses ${path} with 401: ${text.slice(0, 300)}`);
    if (TRY_AGAIN.includes(status))
      throw new ControlPlaneUnavailable(`the control plane answers ${path} with ${status}`);
    if (status !== 200)
      throw new RequestRefused(`the control plane refuses ${path} with ${status}: ${text.slice(0, 300)}`);
    const answer = parsed(text);
    const problem = answerViolationOf(schema, answer);
    if (problem !== null)
      throw new ControlPlaneUnavailable(`the answer to ${path} cannot be read: ${problem}`);
    this.#answered_at_ms = performance.now();
    return answer as Of<Response>;
  }

  /** It cannot reach its database, or is of another version. An answer to a call may fail because of a third one. */
  #leaveAfter(status: number, path: string, place: ControlPlaneAccess): void {
    if ((status >= 500 && path !== ROUTES.answerCall.path) || status === 426) this.#places.leave(place);
  }

  #note(header: string | string[] | undefined, refusal: string | null): void {
    const theirs = typeof header === 'string' && /^[0-9]{1,9}$/.test(header) ? Number(header) : null;
    const before = this.#negotiated;
    if (before !== null && before.theirs === theirs && before.refusal === refusal) return;
    this.#negotiated = { ours: AGENT_PROTOCOL, theirs, refusal };
    this.#onNegotiated(this.#negotiated);
  }
}

/** Messages may come from guests: they are cleaned and cut to what the control plane accepts. */
function withBoundedMessages<T>(body: T): T {
  const text = JSON.stringify(body, (key, value) =>
    key === 'message' && typeof value === 'string' ? untrustedText(value) : value,
  );
  return JSON.parse(text) as T;
}

/** Undefined when it is not JSON, which fits no schema. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function refusalIn(text: string): string {
  const body = parsed(text);
  return answerViolationOf(ProtocolRefusal, body) === null
    ? (body as Of<typeof ProtocolRefusal>).error.message
    : 'the control plane speaks another version of the agent protocol';
}
