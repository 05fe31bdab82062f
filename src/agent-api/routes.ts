/**
 * Every call of the internal API: what is sent and answered. The server serves them and the client calls them from this one
 * table, and `openapi/agent-v2.json` is written from it. All are POST with a JSON body.
 *
 * The rule for changes: a control plane understands agents of its own version and the one before. So a request may lack what
 * was added to it since (a new field is optional for one version), an answer keeps what an older agent reads, and a reader passes
 * over fields that it does not know. Whatever else changes raises `AGENT_PROTOCOL` (`protocol.ts`).
 */
import type { TSchema } from 'typebox';
import { AnswerRequest, CallsRequest, CallsResponse } from './host-calls.ts';
import {
  FindImageRequest,
  FindImageResponse,
  Heartbeat,
  HeartbeatResponse,
  ImageRegistration,
  OfferRequest,
  OfferResponse,
} from './host-types.ts';
import { ActivityReport, RoutesRequest, RoutesResponse, WakeRequest, WakeResponse } from './ingress-types.ts';
import { named } from './schemas.ts';
import {
  BootOrderReport,
  CommitRequest,
  CommitResponse,
  DataKeysRequest,
  DataKeysResponse,
  FlushFailure,
  FlushReport,
  HeadRequest,
  HeadResponse,
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
import { WeaknessesResponse } from './weaknesses.ts';

export interface AgentRoute<Request extends TSchema = TSchema, Response extends TSchema = TSchema> {
  readonly path: string;
  /** Who calls it. The calls of ingress and operator are served on this machine's socket alone. */
  readonly caller: 'host' | 'ingress' | 'operator';
  readonly summary: string;
  readonly request: Request;
  readonly response: Response;
}

function route<Request extends TSchema, Response extends TSchema>(
  name: string,
  summary: string,
  request: Request,
  response: Response,
  caller: AgentRoute['caller'] = 'host',
): AgentRoute<Request, Response> {
  return { path: `/internal/v1/${name}`, caller, summary, request, response };
}

const Nothing = named('Nothing', {});

export const ROUTES = {
  lease: route('lease', 'Renews the lease of the host.', LeaseRequest, LeaseResponse),
  heartbeat: route('heartbeat', 'What the host is, and how its disks are.', Heartbeat, HeartbeatResponse),
  poll: route('poll', 'What the host is to look after. Held until it changes.', PollRequest, PollResponse),
  report: route('report', 'What was observed of a VM.', Report, ReportResponse),
  flush: route('flush', 'What became of a flush that callers wait for.', FlushReport, ReportResponse),
  flushFailure: route('flush-failure', 'An automatic flush failed.', FlushFailure, ReportResponse),
  keys: route('keys', 'Which SSH keys a guest lets in.', KeysReport, ReportResponse),
  logins: route('logins', 'Which SSH keys have let somebody in.', LoginsReport, ReportResponse),
  commit: route('commit', 'Makes a generation whose objects are durable.', CommitRequest, CommitResponse),
  lineage: route('lineage', 'What the database knows of an overlay’s head.', LineageRequest, LineageResponse),
  bootOrder: route('boot-order', 'What a boot read first.', BootOrderReport, ReportResponse),
  objectStore: route('object-store', 'Which object store is in use.', Nothing, ObjectStoreResponse),
  userData: route('user-data', 'The script for a first boot.', UserDataRequest, UserDataResponse),
  userDataGiven: route('user-data-given', 'The guest has the script.', UserDataRequest, ReportResponse),
  head: route('head', 'The durable state of a disk.', HeadRequest, HeadResponse),
  dataKeys: route('data-keys', 'What a disk is encrypted with now.', DataKeysRequest, DataKeysResponse),
  offerImages: route('images/offer', 'Images that the host has.', OfferRequest, OfferResponse),
  registerImage: route('images/register', 'An image is stored.', ImageRegistration, ReportResponse),
  findImage: route('images/find', 'Where an image is stored.', FindImageRequest, FindImageResponse),
  calls: route('calls', 'What callers wait for. Held until there is any.', CallsRequest, CallsResponse),
  answerCall: route('calls/answer', 'The answer to a call.', AnswerRequest, ReportResponse),
  routes: route(
    'routes',
    'Where SSH ports lead. Held until it changes.',
    RoutesRequest,
    RoutesResponse,
    'ingress',
  ),
  wake: route('wake', 'Starts a VM for a connection.', WakeRequest, WakeResponse, 'ingress'),
  activity: route('activity', 'Which ports are in use.', ActivityReport, Nothing, 'ingress'),
  weaknesses: route('weaknesses', 'What weakens the installation.', Nothing, WeaknessesResponse, 'operator'),
} as const;
