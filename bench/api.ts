/** A client of the public API with the calls that the benchmarks need. */
import { setTimeout as sleep } from 'node:timers/promises';

export interface InstanceView {
  readonly id: string;
}
export interface VmView {
  readonly state: string;
  readonly reason: { readonly code: string; readonly message: string };
}
export interface SshView {
  readonly host: string;
  readonly port: number;
}
export interface Receipt {
  readonly generation: number;
  readonly dirty_bytes: number;
  readonly uploaded_bytes: number;
  readonly segments: number;
  readonly duration_ms: number;
  readonly consistency: string;
}

interface RequestText {
  readonly method?: string;
  readonly headers?: Record<string, string>;
  readonly body?: string;
}

class ApiError extends Error {
  override name = 'ApiError';
  readonly status: number;
  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export class Api {
  /** All instances created here, for the cleanup. */
  readonly created: string[] = [];
  readonly url: string;
  readonly #token: string;
  readonly #signal: AbortSignal;

  private constructor(url: string, token: string, signal: AbortSignal) {
    this.url = url;
    this.#token = token;
    this.#signal = signal;
  }

  static async login(
    url: string,
    who: { readonly email: string; readonly password: string },
    signal: AbortSignal,
  ): Promise<Api> {
    const anonymous = new Api(url, '', signal);
    const { session_token } = await anonymous.call<{ session_token: string }>('POST', '/v1/auth/login', who);
    return new Api(url, session_token, signal);
  }

  async addKey(name: string, public_key: string): Promise<void> {
    await this.call('POST', '/v1/me/ssh-keys', { name, public_key });
  }

  async createInstance(name: string): Promise<InstanceView> {
    // Only requested flushes.
    const made = await this.call<InstanceView>('POST', '/v1/instances', { name, auto_flush_seconds: null });
    this.created.push(made.id);
    return made;
  }

  startVm(id: string): Promise<VmView> {
    return this.call('POST', `/v1/instances/${id}/vm`);
  }

  /** @throws when the VM fails, or is not running in time */
  async untilRunning(id: string): Promise<void> {
    for (let tries = 0; tries < 6; tries++) {
      const vm = await this.call<VmView>('GET', `/v1/instances/${id}/vm?wait=running&timeout_seconds=60`);
      if (vm.state === 'running') return;
      if (vm.state === 'failed') throw new Error(`the VM has failed: ${vm.reason.message}`);
    }
    throw new Error('the VM does not come up');
  }

  /** Resolves when the VM is stopped and its disk is saved. */
  async stopVm(id: string): Promise<void> {
    await this.call('DELETE', `/v1/instances/${id}/vm`);
    for (let tries = 0; tries < 6; tries++) {
      const vm = await this.call<VmView>('GET', `/v1/instances/${id}/vm?wait=stopped&timeout_seconds=60`);
      if (vm.state === 'stopped') return;
    }
    throw new Error('the VM does not stop');
  }

  /** Resolves when the VM's memory and disk are saved. */
  async suspendVm(id: string): Promise<void> {
    await this.call('POST', `/v1/instances/${id}/vm/suspend`);
    for (let tries = 0; tries < 6; tries++) {
      const vm = await this.call<VmView>('GET', `/v1/instances/${id}/vm?wait=suspended&timeout_seconds=60`);
      if (vm.state === 'suspended') return;
    }
    throw new Error('the VM is not suspended');
  }

  ssh(id: string): Promise<SshView> {
    return this.call('GET', `/v1/instances/${id}/ssh`);
  }

  flush(id: string): Promise<Receipt> {
    return this.call('POST', `/v1/instances/${id}/vm/flush`);
  }

  /** Resolves when the instance and all its objects are deleted. */
  async deleteInstance(id: string): Promise<void> {
    await this.call('DELETE', `/v1/instances/${id}`);
    for (let tries = 0; tries < 600; tries++) {
      try {
        await this.call('GET', `/v1/instances/${id}`);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) return;
        throw error;
      }
      await sleep(100, undefined, { signal: this.#signal });
    }
    throw new Error('the instance is not deleted');
  }

  /** The header fields of a request that `call` does not make. */
  get authorization(): Record<string, string> {
    return this.#token === '' ? {} : { authorization: `Bearer ${this.#token}` };
  }

  async call<T>(method: string, path: string, body?: unknown): Promise<T> {
    const text = await this.text(path, {
      method,
      ...(body === undefined
        ? {}
        : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } }),
    });
    return (text === '' ? undefined : JSON.parse(text)) as T;
  }

  /** The whole answer, also of a stream that ends. */
  async text(path: string, { method = 'GET', headers = {}, ...more }: RequestText = {}): Promise<string> {
    const response = await fetch(this.url + path, {
      method,
      ...more,
      headers: { ...this.authorization, ...headers },
      signal: this.#signal,
    });
    const text = await response.text();
    if (!response.ok) throw new ApiError(response.status, `${method} ${path}: ${response.status} ${text}`);
    return text;
  }
}

export function unlogged(): never {
  throw new Error('the installation is not ready');
}
