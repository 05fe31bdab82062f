/**
 * The client of Berth's API.
 *
 *   const berth = new Berth({ url: 'https://berth.example.org', token: process.env.BERTH_API_KEY });
 *   const web = await berth.instances.create({ name: 'web' });
 *   await using vm = await berth.vm(web.id).start();
 *
 * `berth.call` calls any operation of the API by name, for example `berth.call('listImages', {})`. `berth.instances` and
 * `berth.vm` are shortcuts for common operations, with paging and waiting.
 */
import { BerthError } from './errors.ts';
import { Files } from './files.ts';
import type {
  ChangeInstanceRequest,
  CreateApiKeyRequest,
  CreateInstanceRequest,
  CreatePortRequest,
  CreateWebhookRequest,
  Event,
  ForkRequest,
  Instance,
  LoginRequest,
  ReplaceKeySetRequest,
} from './generated.ts';
import { type StreamFrame, type StreamOptions, stream } from './streams.ts';
import {
  type Answer,
  type CallOptions,
  type Input,
  type ItemOf,
  itemsOf,
  type ListOperation,
  type OperationId,
  pathSegment,
  Transport,
  type TransportOptions,
} from './transport.ts';
import { VmHandle, type WaitedState, type WaitOptions, waitForVm, waitUntilDeleted } from './vms.ts';

export {
  BerthConnectionError,
  BerthError,
  type ErrorCode,
  type ErrorDetail,
  OutputLostError,
  VmWaitError,
  WebhookVerificationError,
} from './errors.ts';
export {
  type Command,
  ExecHandle,
  type ExecOptions,
  type ExecOutput,
  type ExecResult,
  type StartExecOptions,
} from './execs.ts';
export {
  type FileEntry,
  type FilePath,
  Files,
  type ReadOptions,
  type WriteOptions,
} from './files.ts';
export type {
  ApiKey,
  AuditEntry,
  ConnectionDetails,
  CreateApiKeyRequest,
  CreateInstanceRequest,
  CreateWebhookRequest,
  DeniedDestination,
  Disk,
  EgressMode,
  Event,
  EventType,
  Exec,
  File,
  FlushReceipt,
  Generation,
  Instance,
  KeySet,
  MetricHistory,
  MetricHistorySample,
  MetricSpread,
  MetricsSample,
  Notification,
  Operations,
  Org,
  Port,
  RawBody,
  Secret,
  SshKey,
  Usage,
  User,
  Vm,
  VmState,
  Webhook,
  WebhookDelivery,
  WebhookDeliveryDetail,
} from './generated.ts';
export type { StreamFrame, StreamOptions } from './streams.ts';
export type { Answer, CallOptions, Input, OperationId, TransportOptions } from './transport.ts';
export { type VerifyOptions, verifyWebhook, type WebhookMessage } from './verify-webhook.ts';
export { RunningVm, VmHandle, type WaitedState, type WaitOptions } from './vms.ts';

export type BerthOptions = TransportOptions;

export class Berth {
  readonly #transport: Transport;
  readonly instances: Instances;

  constructor(options: BerthOptions) {
    this.#transport = new Transport(options);
    this.instances = new Instances(this.#transport, this);
  }

  /** Opens a session, and returns a client that uses it. */
  static async login(
    options: Omit<BerthOptions, 'token'>,
    credentials: LoginRequest,
  ): Promise<{ readonly berth: Berth; readonly session: Answer<'login'> }> {
    const session = await new Berth(options).call('login', { body: credentials });
    return { berth: new Berth({ ...options, token: session.session_token }), session };
  }

  get url(): string {
    return this.#transport.url;
  }

  /** Any operation of the API by its name. @throws BerthError, BerthConnectionError */
  call<K extends OperationId>(operation: K, input: Input<K>, options?: CallOptions): Promise<Answer<K>> {
    return this.#transport.call(operation, input, options);
  }

  /** All items of a list. Fetches each page when it is needed. `limit` in the query is the page size. */
  list<K extends ListOperation>(
    operation: K,
    input: Input<K>,
    options?: CallOptions,
  ): AsyncGenerator<ItemOf<K>, void, undefined> {
    return itemsOf(this.#transport, operation, input, options);
  }

  /** The VM of an instance. @param id the instance's */
  vm(id: string): VmHandle {
    return new VmHandle(this.#transport, id);
  }

  /** Files of the guest of a running VM. @param id the instance's */
  files(id: string): Files {
    return new Files(this.#transport, id);
  }

  /** Allows this session the actions that need a recent password, for five minutes. */
  async sudo(
    password: string,
    options?: CallOptions,
  ): Promise<{ readonly expires_at: string; readonly cookie: string }> {
    const { expires_at } = await this.call('grantSudo', { body: { password } }, options);
    return { expires_at, cookie: this.#transport.sudo_cookie ?? '' };
  }

  /** The sudo grant of this client's session, if it has one. */
  get sudo_cookie(): string | undefined {
    return this.#transport.sudo_cookie;
  }

  /** Continues with a grant from `sudo`. */
  useSudo(cookie: string): void {
    this.#transport.sudo_cookie = cookie;
  }

  /** The organisation's events, live. Resumes without loss after a disconnect. If events were lost, calls `onReset`. */
  async *events(
    query: NonNullable<Input<'streamEvents'>['query']> = {},
    options: StreamOptions = {},
  ): AsyncGenerator<Event, void, undefined> {
    // Starts after the newest event, so that a disconnect before the first event loses nothing either.
    const newest =
      options.last_event_id ??
      (await this.call('listEvents', { query: { limit: 1 } }, { signal: options.signal })).data[0]?.id;
    const from = { ...options, last_event_id: newest };
    for await (const { event, data } of stream(this.#transport, 'streamEvents', { query }, from)) {
      if (event === 'reset') options.onReset?.();
      else yield data as Event;
    }
  }

  /** `notification` with a notification, `unread` with the count, `reset` if some were missed. */
  notifications(options: StreamOptions = {}): AsyncGenerator<StreamFrame, void, undefined> {
    return stream(this.#transport, 'streamNotifications', {}, options);
  }

  createApiKey(body: CreateApiKeyRequest, options?: CallOptions) {
    return this.call('createApiKey', { body }, options);
  }

  createWebhook(body: CreateWebhookRequest, options?: CallOptions) {
    return this.call('createWebhook', { body }, options);
  }
}

export class Instances {
  readonly #transport: Transport;
  readonly #berth: Berth;

  constructor(transport: Transport, berth: Berth) {
    this.#transport = transport;
    this.#berth = berth;
  }

  /** Safe to repeat, because it sends an Idempotency-Key. */
  create(body: CreateInstanceRequest, options?: CallOptions): Promise<Instance> {
    return this.#transport.call('createInstance', { body }, options);
  }

  get(id: string, options?: CallOptions): Promise<Instance> {
    return this.#transport.call('getInstance', { path: { id } }, options);
  }

  /** Finds an instance by id or name. @throws BerthError NOT_FOUND */
  async find(id_or_name: string, options?: CallOptions): Promise<Instance> {
    if (/^inst_[0-9a-z]{26}$/.test(id_or_name)) return this.get(id_or_name, options);
    const { data } = await this.#transport.call('listInstances', { query: { name: id_or_name } }, options);
    const found = data.find(({ name }) => name === id_or_name);
    if (found) return found;
    const message = `There is no instance called ${id_or_name}.`;
    throw new BerthError({ status: 404, code: 'NOT_FOUND', message, request_id: null });
  }

  /** The instance of this name, as it is; else a new one. Safe for several programs at once. */
  async getOrCreate(body: CreateInstanceRequest, options?: CallOptions): Promise<Instance> {
    const codeOf = (error: unknown) => (error instanceof BerthError ? error.code : undefined);
    try {
      return await this.find(body.name, options);
    } catch (error) {
      if (codeOf(error) !== 'NOT_FOUND') throw error;
    }
    try {
      return await this.create(body, options);
    } catch (error) {
      if (codeOf(error) !== 'CONFLICT') throw error;
      // Another program was faster.
      return this.find(body.name, options);
    }
  }

  list(query: NonNullable<Input<'listInstances'>['query']> = {}, options?: CallOptions) {
    return this.#berth.list('listInstances', { query }, options);
  }

  change(id: string, body: ChangeInstanceRequest, options?: CallOptions): Promise<Instance> {
    return this.#transport.call('changeInstance', { path: { id }, body }, options);
  }

  delete(id: string, options?: CallOptions): Promise<Instance> {
    return this.#transport.call('deleteInstance', { path: { id } }, options);
  }

  startVm(id: string, options?: CallOptions) {
    return this.#transport.call('startVm', { path: { id } }, options);
  }

  stopVm(id: string, { force = false, ...options }: CallOptions & { readonly force?: boolean } = {}) {
    const query = force ? { force: 'true' as const } : {};
    return this.#transport.call('stopVm', { path: { id }, query }, options);
  }

  restartVm(id: string, options?: CallOptions) {
    return this.#transport.call('restartVm', { path: { id } }, options);
  }

  /** Saves memory and disk in object storage; `startVm` continues from there. */
  suspendVm(id: string, options?: CallOptions) {
    return this.#transport.call('suspendVm', { path: { id } }, options);
  }

  flushVm(id: string, options?: CallOptions) {
    return this.#transport.call('flushVm', { path: { id } }, options);
  }

  /** What `restore` can return to and `fork` can begin from, newest first. */
  generations(id: string, options?: CallOptions) {
    return this.#berth.list('listGenerations', { path: { id } }, options);
  }

  /** Creates an instance with the disk of this one, as of its last flush or an older generation. */
  fork(id: string, body: ForkRequest, options?: CallOptions): Promise<Instance> {
    return this.#transport.call('forkInstance', { path: { id }, body }, options);
  }

  /** Sets the disk back to a generation, as a new one. The VM must be stopped. */
  restore(id: string, generation: number, options?: CallOptions): Promise<Instance> {
    return this.#transport.call('restoreInstance', { path: { id }, body: { generation } }, options);
  }

  /** Publishes a port of the guest under a URL. */
  createPort(id: string, body: CreatePortRequest, options?: CallOptions) {
    return this.#transport.call('createPort', { path: { id }, body }, options);
  }

  ports(id: string, options?: CallOptions) {
    return this.#transport.call('listPorts', { path: { id } }, options);
  }

  /**
   * The WebSocket of one connection to a TCP port of the guest. Binary messages in both directions are its bytes; a text
   * message `end` ends the direction of its sender.
   */
  forward(id: string, port: number) {
    return this.#transport.webSocket(`/v1/instances/${pathSegment('id', id)}/vm/forward?port=${port}`);
  }

  /**
   * The WebSocket of a stream to an exec, from `offset` on. Binary messages begin with a byte for the channel (0 stdin, 1 stdout,
   * 2 stderr); text messages are JSON.
   */
  attach(id: string, exec_id: string, offset: number) {
    const path = `/v1/instances/${pathSegment('id', id)}/execs/${pathSegment('exec_id', exec_id)}/stream`;
    return this.#transport.webSocket(`${path}?offset=${offset}`);
  }

  ssh(id: string, options?: CallOptions) {
    return this.#transport.call('getSsh', { path: { id } }, options);
  }

  keySet(id: string, options?: CallOptions) {
    return this.#transport.call('getKeySet', { path: { id } }, options);
  }

  replaceKeySet(id: string, body: ReplaceKeySetRequest, options?: CallOptions) {
    return this.#transport.call('replaceKeySet', { path: { id }, body }, options);
  }

  /** Waits until the VM is in the state. @throws VmWaitError when it failed, or at the timeout */
  waitFor(id: string, state: WaitedState, options?: WaitOptions) {
    return waitForVm(this.#transport, id, state, options);
  }

  waitUntilDeleted(id: string, options?: WaitOptions) {
    return waitUntilDeleted(this.#transport, id, options);
  }
}
