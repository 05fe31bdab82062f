/** A small HTTP client for tests: any method, any body or none, and only the headers that the test sets. */
import { type Agent, request } from 'undici';
import { assertDocumentedError } from './documented-errors.ts';

export interface Answer<T> {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: T;
  readonly text: string;
}

export interface ErrorBody {
  readonly error: {
    readonly code: string;
    readonly message: string;
    readonly request_id: string;
    readonly details?: readonly { readonly field: string; readonly issue: string }[];
  };
}

export interface Page<T> {
  readonly data: readonly T[];
  readonly next_cursor: string | null;
}

export const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const;
export type Method = (typeof METHODS)[number];

export interface CallOptions {
  /** Sent as JSON with its Content-Type. */
  readonly json?: unknown;
  /** Sent unchanged. `headers` may contain its Content-Type. */
  readonly raw?: string | Buffer;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

export class Client {
  readonly #origin: string;
  readonly #token: string | undefined;
  readonly #agent: Agent;

  constructor(origin: string, agent: Agent, token?: string) {
    this.#origin = origin;
    this.#agent = agent;
    this.#token = token;
  }

  as(token: string | undefined): Client {
    return new Client(this.#origin, this.#agent, token);
  }

  async call<T = ErrorBody>(method: Method, path: string, options: CallOptions = {}): Promise<Answer<T>> {
    const { json, raw, headers = {}, signal } = options;
    const response = await request(this.#origin + path, {
      method,
      dispatcher: this.#agent,
      headers: {
        ...(this.#token === undefined ? {} : { authorization: `Bearer ${this.#token}` }),
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
        ...headers,
      },
      body: json === undefined ? (raw ?? null) : JSON.stringify(json),
      ...(signal ? { signal } : {}),
    });
    const is_stream = String(response.headers['content-type']).startsWith('text/event-stream');
    // A stream does not end, so its head is the answer.
    if (is_stream) response.body.on('error', () => undefined).destroy();
    const text = is_stream ? '' : await response.body.text();
    const is_json = String(response.headers['content-type'] ?? '').startsWith('application/json');
    const body = (is_json ? JSON.parse(text) : undefined) as T & Partial<ErrorBody>;
    if (typeof body?.error?.code === 'string') assertDocumentedError(method, path, body.error.code);
    return { status: response.statusCode, headers: response.headers, body, text };
  }

  get<T = ErrorBody>(path: string, options?: CallOptions) {
    return this.call<T>('GET', path, options);
  }
  post<T = ErrorBody>(path: string, json?: unknown, options?: CallOptions) {
    return this.call<T>('POST', path, { ...options, json });
  }
  put<T = ErrorBody>(path: string, json?: unknown) {
    return this.call<T>('PUT', path, { json });
  }
  patch<T = ErrorBody>(path: string, json?: unknown) {
    return this.call<T>('PATCH', path, { json });
  }
  delete<T = ErrorBody>(path: string, json?: unknown) {
    return this.call<T>('DELETE', path, { json });
  }
}
