/**
 * Lists every call of the internal API with its schemas. Server, client and `openapi/agent-v1.json` use this one table.
 * All calls are POST with a JSON body.
 *
 * Compatibility: a control plane understands agents of its own version and of the previous one. So a new request field
 * is optional for one version, an answer keeps the fields that an older agent reads, and readers ignore unknown fields.
 * Any other change raises `AGENT_PROTOCOL` (`protocol.ts`).
 */
import type { TSchema } from 'typebox';
import { ExecsReport } from './exec-types.ts';
import { AnswerRequest, CallsRequest, CallsResponse, PeerAnswerRequest } from './host-calls.ts';
import {
  CredentialRequest,
  CredentialResponse,
  DeniedReport,
  FindImageRequest,
  FindImageResponse,
  Heartbeat,
  HeartbeatResponse,
  ImageRegistration,
  MinutesReport,
  OfferRequest,
  OfferResponse,
  WeaknessesResponse,
} from './host-types.ts';
import {
  ActivityReport,
  ActivityResponse,
  AuthoriseHttpRequest,
  AuthoriseHttpResponse,
  HttpReport,
  HttpRoutesRequest,
  HttpRoutesResponse,
  OpenPortRequest,
  OpenPortResponse,
  PeerConfirmRequest,
  PeerHostRequest,
  PeerTakeRequest,
  PeerTakeResponse,
  RedeemHttpTicketRequest,
  RedeemHttpTicketResponse,
  RoutesRequest,
  RoutesResponse,
  WakeRequest,
  WakeResponse,
} from './ingress-types.ts';
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
  ObjectPermissionsRequest,
  ObjectPermissionsResponse,
  ObjectStoreResponse,
  PollRequest,
  PollResponse,
  Report,
  ReportResponse,
  UnknownVmReport,
  UserDataRequest,
  UserDataResponse,
} from './types.ts';

export interface AgentRoute<Request extends TSchema = TSchema, Response extends TSchema = TSchema> {
  readonly path: string;
  /** Whose token is accepted. The operator's calls take that of this machine's host, on its socket. Peers are other control planes. */
  readonly caller: 'host' | 'ingress' | 'operator' | 'peer';
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
  join: route(
    'join',
    'Exchanges a join token, which is the bearer, for a credential of the host. Repeatable with the same credential.',
    CredentialRequest,
    CredentialResponse,
  ),
  rotate: route(
    'rotate',
    'Announces the next credential of the host. The present one is valid until a heartbeat comes with the next.',
    CredentialRequest,
    CredentialResponse,
  ),
  lease: route('lease', 'Renews the lease of the host.', LeaseRequest, LeaseResponse),
  heartbeat: route('heartbeat', 'Reports the facts of the host and its disks.', Heartbeat, HeartbeatResponse),
  poll: route('poll', 'The assignments of the host. Held until they change.', PollRequest, PollResponse),
  report: route('report', 'Reports an observation of a VM.', Report, ReportResponse),
  flush: route('flush', 'Reports the progress of a requested flush.', FlushReport, ReportResponse),
  flushFailure: route(
    'flush-failure',
    'Reports that an automatic flush failed.',
    FlushFailure,
    ReportResponse,
  ),
  keys: route('keys', 'Reports the SSH keys that a guest accepts.', KeysReport, ReportResponse),
  logins: route('logins', 'Reports the SSH keys that logged in.', LoginsReport, ReportResponse),
  minutes: route('minutes', 'Reports what VMs used in past minutes.', MinutesReport, ReportResponse),
  denied: route('denied', 'Reports what VMs were denied to reach.', DeniedReport, ReportResponse),
  execs: route('execs', 'Reports the output and the ends of execs.', ExecsReport, ReportResponse),
  commit: route('commit', 'Commits a generation whose objects are durable.', CommitRequest, CommitResponse),
  lineage: route('lineage', 'What the database knows of an overlay’s head.', LineageRequest, LineageResponse),
  unknownVm: route(
    'unknown-vm',
    'Reports the VM of an overlay; `accepted`: the database does not know it, and its owner was told.',
    UnknownVmReport,
    ReportResponse,
  ),
  bootOrder: route('boot-order', 'Reports which blocks a boot read first.', BootOrderReport, ReportResponse),
  objectStore: route('object-store', 'The mark of the object store in use.', Nothing, ObjectStoreResponse),
  objectPermissions: route(
    'object-permissions',
    'Signs requests to the object store, for objects that the host needs now.',
    ObjectPermissionsRequest,
    ObjectPermissionsResponse,
  ),
  userData: route('user-data', 'The script for a first boot.', UserDataRequest, UserDataResponse),
  userDataGiven: route(
    'user-data-given',
    'Reports that the guest has the script.',
    UserDataRequest,
    ReportResponse,
  ),
  head: route('head', 'The durable state of a disk.', HeadRequest, HeadResponse),
  dataKeys: route('data-keys', 'The data keys of a disk.', DataKeysRequest, DataKeysResponse),
  offerImages: route('images/offer', 'Offers the images that the host has.', OfferRequest, OfferResponse),
  registerImage: route('images/register', 'Registers a stored image.', ImageRegistration, ReportResponse),
  findImage: route('images/find', 'Finds a stored image.', FindImageRequest, FindImageResponse),
  calls: route(
    'calls',
    'Calls that wait for this host. Held until there is one.',
    CallsRequest,
    CallsResponse,
  ),
  answerCall: route('calls/answer', 'Answers a call.', AnswerRequest, ReportResponse),
  peerTake: route(
    'peers/take',
    'Takes the calls that wait here for a host that polls at the caller.',
    PeerTakeRequest,
    PeerTakeResponse,
    'peer',
  ),
  peerConfirm: route(
    'peers/confirm',
    'Confirms that the host got the calls.',
    PeerConfirmRequest,
    Nothing,
    'peer',
  ),
  peerAnswer: route(
    'peers/answer',
    'Passes on the answer to a call.',
    PeerAnswerRequest,
    ReportResponse,
    'peer',
  ),
  peerFailTaken: route(
    'peers/fail-taken',
    'Says that the agent of a host was restarted.',
    PeerHostRequest,
    Nothing,
    'peer',
  ),
  routes: route(
    'routes',
    'The routes of SSH ports. Held until they change.',
    RoutesRequest,
    RoutesResponse,
    'ingress',
  ),
  wake: route('wake', 'Starts a VM for a connection.', WakeRequest, WakeResponse, 'ingress'),
  activity: route('activity', 'Reports which ports are in use.', ActivityReport, ActivityResponse, 'ingress'),
  httpRoutes: route(
    'http-routes',
    'The routes of HTTP ports. Held until they change.',
    HttpRoutesRequest,
    HttpRoutesResponse,
    'ingress',
  ),
  authoriseHttp: route(
    'http-ports/authorise',
    'Asks whether a client may use a private HTTP port.',
    AuthoriseHttpRequest,
    AuthoriseHttpResponse,
    'ingress',
  ),
  redeemHttpTicket: route(
    'http-ports/redeem-ticket',
    'Redeems the ticket of a browser for a cookie.',
    RedeemHttpTicketRequest,
    RedeemHttpTicketResponse,
    'ingress',
  ),
  reportHttp: route('http-ports/report', 'Reports the use of HTTP ports.', HttpReport, Nothing, 'ingress'),
  openPort: route(
    'open-port',
    'The address that leads to a TCP port of a VM on this machine.',
    OpenPortRequest,
    OpenPortResponse,
    'ingress',
  ),
  weaknesses: route(
    'weaknesses',
    'The weak settings of the installation.',
    Nothing,
    WeaknessesResponse,
    'operator',
  ),
} as const;
