/**
 * Sends a request, and retries it if it is safe to repeat: a GET, PUT or DELETE without a raw body, or a request with
 * an Idempotency-Key. Every operation that accepts such a key gets one. Waits grow exponentially with full jitter; a
 * Retry-After of the server is added. Also fetches the pages of lists.
 */
import { BerthConnectionError, BerthError, type ErrorCode } from './errors.ts';
import { type ErrorBody, OPERATIONS, type Operations } from './generated.ts';

export type OperationId = keyof Operations;
export type Input<K extends OperationId> = Operations[K]['input'];
export type Answer<K extends OperationId> = Operations[K]['answer'];

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
  /** Default: a new key for each call. Set your own to make a call safe to repeat after a restart of your program. */
  readonly idempotency_key?: string | undefined;
  /** An ETag: the call fails with PRECONDITION_FAILED if the resource has changed. */
  readonly if_match?: string | undefined;
  /** Gets the ETag of the answer, for `if_match` of a change that depends on it. */
  readonly onEtag?: ((etag: string) => void) | undefined;
}

export interface TransportOptions {
  /** Berth's origin: `https://berth.example.org`. */
  readonly url: string;
  /** An API key or a session token. */
  readonly token?: string | undefined;
  /** The organisation that a session acts in. */
  readonly org?: string | undefined;
  /** The maximum number of retries of a call that is safe to repeat. Default 4. */
  readonly retries?: number | undefined;
  readonly fetch?: typeof globalThis.fetch | undefined;
  readonly user_agent?: string | undefined;
}

const BACKOFF_BASE_MS = 250;
const BACKOFF_CAP_MS = 8_000;
/** If Retry-After is longer, the call fails and the caller must wait. */
const MAX_RETRY_AFTER_MS = 30_000;
const REPEATED_CODES: readonly string[] = ['RATE_LIMITED', 'UNAVAILABLE', 'IDEMPOTENCY_IN_PROGRESS'];
const SUDO_COOKIE = '__Secure-berth_sudo';

/** A value as one segment of a path. Without a value, and with a segment that URLs remove, it would address another route. */
export function pathSegment(name: string, value: string | undefined): string {
  if (value !== undefined && !['', '.', '..'].includes(value)) return encodeURIComponent(value);
  const given = value === undefined ? 'absent' : JSON.stringify(value);
  throw new TypeError(`${name} must be an id or a name, and is ${given}`);
}

export function wait(ms: number, signal?: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', abort);
      resolve();
    }, ms);
    signal?.addEventListener('abort', abort, { once: true });
  });
}

/** Full jitter. `attempt` counts from 0. */
export function backoffMs(attempt: number): number {
  return Math.random() * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** attempt);
}

interface LooseInput {
  readonly path?: Readonly<Record<string, string>>;
  readonly query?: Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;
  readonly body?: unknown;
}

interface SendOptions extends CallOptions {
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** Of the query, encoded already. */
  readonly search?: string | undefined;
}

export class Transport {
  readonly url: string;
  readonly #options: TransportOptions;
  /** The sudo grant of this session, as a Cookie header. */
  #sudo: string | undefined;

  constructor(options: TransportOptions) {
    this.url = options.url.replace(/\/+$/, '');
    this.#options = options;
  }

  get sudo_cookie(): string | undefined {
    return this.#sudo;
  }
  set sudo_cookie(cookie: string | undefined) {
    this.#sudo = cookie;
  }

  /** @throws BerthError, BerthConnectionError, the signal's reason */
  async call<K extends OperationId>(
    operation: K,
    input: Input<K>,
    options: CallOptions = {},
  ): Promise<Answer<K>> {
    const { method, takes_idempotency_key, takes_bytes, answers_text } = OPERATIONS[operation];
    const idempotency_key = takes_idempotency_key
      ? (options.idempotency_key ?? crypto.randomUUID())
      : options.idempotency_key;
    // A raw body may be a stream, which is read once.
    const repeatable = (['GET', 'PUT', 'DELETE'].includes(method) && !takes_bytes) || takes_idempotency_key;
    const retries = repeatable ? (this.#options.retries ?? 4) : 0;
    for (let attempt = 0; ; attempt++) {
      try {
        const response = await this.send(operation, input, { ...options, idempotency_key });
        this.#rememberSudo(response);
        const etag = response.headers.get('etag');
        if (etag !== null) options.onEtag?.(etag);
        return (await bodyOf(response, answers_text)) as Answer<K>;
      } catch (error) {
        options.signal?.throwIfAborted();
        const wait_ms = attempt < retries ? waitBeforeRepeating(error, attempt) : null;
        if (wait_ms === null) throw error;
        await wait(wait_ms, options.signal);
      }
    }
  }

  /** One attempt; returns the successful response. @throws BerthError, BerthConnectionError, the signal's reason */
  async send<K extends OperationId>(
    operation: K,
    input: Input<K>,
    options: SendOptions = {},
  ): Promise<Response> {
    const { method, takes_bytes } = OPERATIONS[operation];
    const { body } = input as LooseInput;
    const address = this.#address(operation, input, options.search);
    const type = takes_bytes ? 'application/octet-stream' : 'application/json';
    const request = {
      method,
      headers: this.#headers(options, body === undefined ? null : type),
      redirect: 'error',
      // The type of requests does not know `duplex` yet, without which no stream is sent.
      ...(body === undefined ? {} : { body: takes_bytes ? body : JSON.stringify(body), duplex: 'half' }),
      ...(options.signal ? { signal: options.signal } : {}),
    } as RequestInit;
    let response: Response;
    try {
      response = await (this.#options.fetch ?? globalThis.fetch)(address, request);
    } catch (cause) {
      options.signal?.throwIfAborted();
      throw new BerthConnectionError(`${this.url} does not answer: ${reasonOf(cause)}`, { cause });
    }
    if (response.ok) return response;
    throw await errorOf(response);
  }

  /** The address and the headers of a WebSocket, which this client does not open. */
  webSocket(path: string): { readonly url: string; readonly headers: Readonly<Record<string, string>> } {
    return { url: this.url.replace(/^http/, 'ws') + path, headers: this.#headers({}, null) };
  }

  #address(operation: OperationId, input: unknown, encoded?: string): string {
    const { path = {}, query = {} } = input as LooseInput;
    const address = OPERATIONS[operation].path.replace(/\{(\w+)\}/g, (_, name: string) => {
      return pathSegment(`${operation}: path.${name}`, path[name]);
    });
    const search = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      for (const each of Array.isArray(value) ? value : [value])
        if (each !== undefined) search.append(name, String(each));
    }
    const whole = encoded ?? String(search);
    return this.url + address + (whole === '' ? '' : `?${whole}`);
  }

  #headers(
    { idempotency_key, if_match, headers }: SendOptions,
    content_type: string | null,
  ): Record<string, string> {
    const { token, org, user_agent } = this.#options;
    return {
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...(org === undefined ? {} : { 'berth-org': org }),
      ...(user_agent === undefined ? {} : { 'user-agent': user_agent }),
      ...(this.#sudo === undefined ? {} : { cookie: this.#sudo }),
      ...(content_type === null ? {} : { 'content-type': content_type }),
      ...(idempotency_key === undefined ? {} : { 'idempotency-key': idempotency_key }),
      ...(if_match === undefined ? {} : { 'if-match': if_match }),
      ...headers,
    };
  }

  #rememberSudo(response: Response): void {
    const found = response.headers.getSetCookie().find((each) => each.startsWith(`${SUDO_COOKIE}=`));
    if (found !== undefined) this.#sudo = found.split(';')[0];
  }
}

async function bodyOf(response: Response, is_text: boolean): Promise<unknown> {
  try {
    const text = await response.text();
    if (is_text) return text;
    return text === '' ? undefined : JSON.parse(text);
  } catch (cause) {
    if (cause instanceof SyntaxError) throw unexpected(response);
    throw new BerthConnectionError(`the answer broke off: ${reasonOf(cause)}`, { cause });
  }
}

/** Null: do not retry. */
function waitBeforeRepeating(error: unknown, attempt: number): number | null {
  if (error instanceof BerthConnectionError) return backoffMs(attempt);
  if (!(error instanceof BerthError) || !REPEATED_CODES.includes(error.code)) return null;
  const asked_ms = (error.retry_after_seconds ?? 0) * 1_000;
  return asked_ms > MAX_RETRY_AFTER_MS ? null : asked_ms + backoffMs(attempt);
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  // fetch hides the failure in `cause`, and a refused connection to several addresses in an AggregateError.
  const { cause } = error as { cause?: { code?: string; message?: string } };
  return cause?.message || cause?.code || error.message;
}

async function errorOf(response: Response): Promise<BerthError> {
  const body = (await response.json().catch(() => undefined)) as Partial<ErrorBody> | undefined;
  const error = body?.error;
  if (typeof error?.code !== 'string') return unexpected(response);
  const retry_after = Number(response.headers.get('retry-after') ?? Number.NaN);
  return new BerthError({
    status: response.status,
    code: error.code as ErrorCode,
    message: error.message,
    request_id: error.request_id,
    details: error.details ?? [],
    retry_after_seconds: Number.isFinite(retry_after) ? retry_after : null,
  });
}

function unexpected(response: Response): BerthError {
  return new BerthError({
    status: response.status,
    code: 'UNEXPECTED',
    message: `${response.url} answered ${response.status}, and not as Berth does.`,
    request_id: response.headers.get('x-request-id'),
  });
}

/** Operations whose answer is a page of a list. */
export type ListOperation = {
  [K in OperationId]: Answer<K> extends { data: readonly unknown[]; next_cursor: string | null } ? K : never;
}[OperationId];
export type ItemOf<K extends OperationId> =
  Answer<K> extends { data: readonly (infer Item)[] } ? Item : never;

/** Lists: each page is fetched when it is needed. */
export async function* itemsOf<K extends ListOperation>(
  transport: Transport,
  operation: K,
  input: Input<K>,
  options?: CallOptions,
): AsyncGenerator<ItemOf<K>, void, undefined> {
  type Page = { data: ItemOf<K>[]; next_cursor: string | null };
  for (let cursor: string | null = null; ; ) {
    const query = { ...(input as { query?: object }).query, ...(cursor === null ? {} : { cursor }) };
    const page = (await transport.call(operation, { ...input, query } as Input<K>, options)) as Page;
    yield* page.data;
    cursor = page.next_cursor;
    if (cursor === null) return;
  }
}
