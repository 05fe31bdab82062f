/**
 * The HTTP server of the E2B adapter. The request's host and path decide which part of the adapter answers, and which
 * credential the caller needs:
 *
 *   PORT-SANDBOX.domain, except port 49983                            a port of the guest; no credential
 *   /process.Process/…, /filesystem.Filesystem/…, /files, /health     envd, E2B's agent in a sandbox; its access token
 *   /sandboxes…, /v2/sandboxes…                                       E2B's control API; an API key of Berth
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { Berth } from '../../../client/src/berth.ts';
import {
  boundHttp,
  ConnectionBudget,
  filesForConnections,
  openFilesLimit,
} from '../../../src/shared/connection-budget.ts';
import { contain, endAfterFault } from '../../../src/shared/contain.ts';
import { Deadlines } from './deadlines.ts';
import { answerEnvd, ENVD_PATH } from './envd.ts';
import { Failure, failureOf } from './failures.ts';
import { type GuestAddress, guestAddressOf, passRequest, passUpgrade, refuseUpgrade } from './guest-ports.ts';
import { BodyBudget, parsed, readBody, SMALL_BODY_BYTES, sendJson } from './request-body.ts';
import { AccessTokens, instanceIdOf } from './sandbox.ts';
import { type CreateBody, Sandboxes } from './sandboxes.ts';

const ENVD_PORT = 49983;
/** Its own, one to Berth, and one in reserve. */
const FILES_OF_A_CONNECTION = 3;
const CONNECTIONS_MAX = 10_000;
const SANDBOX_PATH = /^(?:\/v2)?\/sandboxes(?:\/([^/]+)(?:\/(\w+))?)?$/;

export interface AdapterOptions {
  readonly berth_url: string;
  /** Of the access tokens. */
  readonly key: Buffer;
  readonly domain: string;
  readonly log: (line: string) => void;
  /** The adapter's own: it ends the sandboxes of its organisation, and opens their ports. */
  readonly api_key: string;
  /** At most so many connections at once, half of them of one address; absent: as many as the limit of open files allows. */
  readonly connections?: number;
}

function connectionsOfOpenFiles(): number {
  const files = filesForConnections(openFilesLimit());
  return Math.min(CONNECTIONS_MAX, Math.floor(files / FILES_OF_A_CONNECTION));
}

export class Adapter {
  readonly server: Server;
  readonly #options: AdapterOptions;
  readonly #tokens: AccessTokens;
  readonly #deadlines: Deadlines;
  readonly #sandboxes: Sandboxes;
  readonly #bodies = new BodyBudget();
  /** With the adapter's own key. */
  readonly #own: Berth;

  constructor(options: AdapterOptions) {
    this.#options = options;
    this.#tokens = new AccessTokens(options.key);
    this.#own = this.#client(options.api_key);
    this.#deadlines = new Deadlines(this.#own, options.log);
    const client = (api_key: string) => this.#client(api_key);
    this.#sandboxes = new Sandboxes(client, this.#tokens, this.#deadlines, options.domain);
    this.server = contain(createServer());
    this.server.on('request', (request, response) => {
      this.#answer(request, response).catch(endAfterFault(response));
    });
    this.server.on('upgrade', (request, socket, head) => {
      socket.on('error', () => socket.destroy());
      const address = guestAddressOf(request.headers.host);
      const forward = address && this.#forward(address);
      if (forward) passUpgrade(request, socket, head, forward);
      else refuseUpgrade(socket, 404, 'This adapter has not served that sandbox since it started.');
    });
    const most = options.connections ?? connectionsOfOpenFiles();
    boundHttp(this.server, new ConnectionBudget({ most, per_source: most }));
  }

  /** Finds all sandboxes. @throws BerthError if the adapter's key may not */
  async start(): Promise<void> {
    await this.#deadlines.start();
  }

  #client(token: string): Berth {
    return new Berth({ url: this.#options.berth_url, user_agent: 'berth-e2b', token });
  }

  close(): void {
    this.#deadlines.close();
    this.server.close();
    this.server.closeAllConnections();
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = URL.parse(request.url ?? '/', 'http://adapter') ?? new URL('http://adapter');
    try {
      const address = guestAddressOf(request.headers.host);
      if (address !== null && address.port !== ENVD_PORT) {
        const forward = this.#forward(address);
        if (forward) return passRequest(request, response, forward);
        throw new Failure('unavailable', `There is no sandbox ${address.sandbox_id}.`);
      }
      if (ENVD_PATH.test(url.pathname)) {
        const sandbox_id = String(request.headers['e2b-sandbox-id'] ?? address?.sandbox_id ?? '');
        const api_key = this.#tokens.open(sandbox_id, String(request.headers['x-access-token'] ?? ''));
        const id = instanceIdOf(sandbox_id);
        const place = { berth: this.#client(api_key), id, caller: api_key, bodies: this.#bodies };
        return await answerEnvd(place, request, response, url);
      }
      await this.#control(request, response, url);
    } catch (error) {
      this.#fail(request, response, url, error);
    }
  }

  #fail(request: IncomingMessage, response: ServerResponse, url: URL, error: unknown): void {
    const failure = failureOf(error);
    if (failure.status >= 500) {
      const cause = failure.code === 'internal' ? `: ${String(failure.cause ?? failure.message)}` : '';
      this.#options.log(`${request.method} ${url.pathname}: ${failure.code}${cause}`);
    }
    if (response.headersSent) return void response.destroy();
    if (failure.retry_after_seconds !== null) response.setHeader('retry-after', failure.retry_after_seconds);
    sendJson(response, failure.status, {
      // The control API's errors have the status as their code, the sandbox's the name.
      code: /^\/(process|filesystem)\./.test(url.pathname) ? failure.connect_code : failure.status,
      message: failure.message,
    });
  }

  #forward({ sandbox_id, port }: GuestAddress) {
    if (!this.#deadlines.isKnown(sandbox_id)) return null;
    return this.#own.instances.forward(instanceIdOf(sandbox_id), port);
  }

  async #control(request: IncomingMessage, response: ServerResponse, url: URL): Promise<void> {
    const api_key = request.headers['x-api-key'];
    if (typeof api_key !== 'string' || !/^[\x21-\x7e]+$/.test(api_key))
      throw new Failure('unauthenticated', 'Set E2B_API_KEY to an API key of Berth.');
    const route = SANDBOX_PATH.exec(url.pathname);
    if (route === null) throw this.#notCovered(request, url);
    const [, id = '', verb = ''] = route;
    const body = parsed(await readBody(request, SMALL_BODY_BYTES));
    const all = this.#sandboxes;
    switch (`${request.method} ${[id && ':id', verb].filter(Boolean).join('/')}`) {
      case 'POST ':
        return sendJson(response, 201, await all.create(api_key, body as CreateBody));
      case 'GET ': {
        const { sandboxes, next } = await all.list(api_key, url.searchParams);
        if (next !== null) response.setHeader('x-next-token', next);
        return sendJson(response, 200, sandboxes);
      }
      case 'GET :id':
        return sendJson(response, 200, await all.get(api_key, id));
      case 'DELETE :id':
        await all.kill(api_key, id);
        break;
      case 'POST :id/pause':
        await all.pause(api_key, id, body['memory'] !== false);
        break;
      case 'POST :id/connect':
      case 'POST :id/resume': {
        const { timeout, memory } = body;
        return sendJson(response, 200, await all.connect(api_key, id, timeout, memory !== false));
      }
      case 'POST :id/timeout':
        await all.setTimeout(api_key, id, body['timeout']);
        break;
      default:
        throw this.#notCovered(request, url);
    }
    response.writeHead(204).end();
  }

  #notCovered(request: IncomingMessage, url: URL): Failure {
    return new Failure(
      'unimplemented',
      `Berth's adapter for E2B does not cover ${request.method} ${url.pathname}.`,
    );
  }
}
