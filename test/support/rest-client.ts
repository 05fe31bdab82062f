/** A client of the public API: JSON over HTTP, with the token of a session or an API key. */
import assert from 'node:assert/strict';

export interface Answer<T = unknown> {
  readonly status: number;
  readonly body: T;
  readonly headers: Headers;
}

export interface VmBody {
  readonly host_id: string | null;
  readonly id: string | null;
  readonly instance_id: string;
  readonly state: string;
  readonly boot: number;
  readonly reason: { readonly code: string; readonly message: string; readonly actor: string } | null;
  readonly disk: { readonly generation: number; readonly dirty_bytes: number; readonly stored_bytes: number };
}
export interface InstanceBody {
  readonly id: string;
  readonly name: string;
  readonly deleting: boolean;
  readonly vm: VmBody;
  readonly disk: VmBody['disk'];
}
export interface ReceiptBody {
  readonly generation: number;
  readonly durable_at: string | null;
  readonly dirty_bytes: number;
  readonly uploaded_bytes: number;
  readonly segments: number;
  readonly duration_ms: number;
  readonly consistency: string;
}
export interface SshBody {
  readonly host: string;
  readonly port: number;
  readonly user: string;
  readonly host_keys: readonly { readonly fingerprint: string }[];
  readonly known_hosts: readonly string[];
  readonly allowed_keys: number;
}
export interface ErrorBody {
  readonly error: { readonly code: string; readonly message: string; readonly request_id: string };
}

export class RestClient {
  readonly #origin: string;
  #token: string | undefined;

  constructor(origin: string) {
    this.#origin = origin;
  }

  /** For requests that are not JSON. */
  get token(): string {
    return this.#token ?? '';
  }

  async login(email: string, password: string): Promise<void> {
    const { session_token } = await this.expect<{ session_token: string }>(200, 'POST', '/v1/auth/login', {
      email,
      password,
    });
    this.#token = session_token;
  }

  /** Switches to a new API key of the session's user, which outlives the session. */
  async takeKey(): Promise<void> {
    const wanted = { name: 'test', scope: '*' };
    this.#token = (await this.expect<{ key: string }>(201, 'POST', '/v1/api-keys', wanted)).key;
  }

  async request<T = unknown>(
    method: string,
    path: string,
    body?: unknown,
    signal: AbortSignal = AbortSignal.timeout(120_000),
  ): Promise<Answer<T>> {
    const response = await fetch(this.#origin + path, {
      method,
      headers: {
        ...(this.#token === undefined ? {} : { authorization: `Bearer ${this.#token}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal,
    });
    const text = await response.text();
    const is_json = response.headers.get('content-type')?.startsWith('application/json');
    const parsed: unknown = text === '' ? undefined : is_json ? JSON.parse(text) : text;
    return { status: response.status, body: parsed as T, headers: response.headers };
  }

  /** The body of a response with this status. Any other status fails with the response's text. */
  async expect<T>(
    status: number | readonly number[],
    method: string,
    path: string,
    body?: unknown,
  ): Promise<T> {
    const answer = await this.request<T>(method, path, body);
    const wanted = typeof status === 'number' ? [status] : status;
    assert(
      wanted.includes(answer.status),
      `${method} ${path} answered ${answer.status}, not ${wanted.join(' or ')}: ${JSON.stringify(answer.body)}`,
    );
    return answer.body;
  }
}
