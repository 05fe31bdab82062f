/**
 * The handle of an instance's VM: starts, stops and flushes it, runs commands in it, and waits until it reaches a state.
 */
import { BerthError, VmWaitError } from './errors.ts';
import {
  type Command,
  ExecHandle,
  type ExecOptions,
  type ExecResult,
  runExec,
  type StartExecOptions,
  startExec,
} from './execs.ts';
import { Files } from './files.ts';
import type { ConnectionDetails, Exec, FlushReceipt, Instance, Vm } from './generated.ts';
import { type CallOptions, itemsOf, type Transport, wait } from './transport.ts';

export type WaitedState = 'running' | 'stopped' | 'suspended';

export interface WaitOptions extends Pick<CallOptions, 'signal'> {
  /** A start was requested just now, so a state of stopped or suspended means that another caller stopped the VM. */
  readonly begun?: boolean | undefined;
  /** Default ten minutes. */
  readonly timeout_ms?: number | undefined;
  /** Called with the VM after each poll. */
  readonly onVm?: ((vm: Vm) => void) | undefined;
}

const WAIT_MS = 600_000;
/** How long the server may delay an answer; its maximum is a minute. */
const HELD_SECONDS = 30;
const TOLD_SECONDS = 5;
const DELETED_EVERY_MS = 500;

/** Waits until the VM is in `state`. @throws VmWaitError when it failed, was stopped meanwhile, or at the timeout */
export async function waitForVm(
  transport: Transport,
  id: string,
  state: WaitedState,
  { begun = false, timeout_ms = WAIT_MS, signal, onVm }: WaitOptions = {},
): Promise<Vm> {
  const deadline = performance.now() + timeout_ms;
  for (;;) {
    const left_s = Math.ceil((deadline - performance.now()) / 1_000);
    const held = Math.max(1, Math.min(onVm ? TOLD_SECONDS : HELD_SECONDS, left_s));
    const input = { path: { id }, query: { wait: state, timeout_seconds: held } } as const;
    const vm = await transport.call('getVm', input, { signal });
    onVm?.(vm);
    if (vm.state === state) return vm;
    const why = vm.reason === null ? '' : `: ${vm.reason.message} (${vm.reason.code})`;
    if (vm.state === 'failed') throw new VmWaitError(`the VM has failed${why}`, vm);
    // It will no longer reach that state by itself.
    if (state === 'suspended' && vm.state === 'running' && vm.reason?.code === 'suspend_failed')
      throw new VmWaitError(`the VM runs on${why}`, vm);
    if (state === 'running' && vm.state === 'suspended' && vm.reason?.code === 'resume_failed')
      throw new VmWaitError(`the VM is suspended again${why}`, vm);
    if (begun && state === 'running' && (vm.state === 'stopped' || vm.state === 'suspended'))
      throw new VmWaitError(`the VM is ${vm.state}: it was stopped meanwhile${why}`, vm);
    if (performance.now() >= deadline) {
      throw new VmWaitError(
        `the VM is still ${vm.state} after ${Math.round(timeout_ms / 1_000)} s${why}`,
        vm,
      );
    }
  }
}

/** Waits until the instance and all its objects are deleted. */
export async function waitUntilDeleted(
  transport: Transport,
  id: string,
  { timeout_ms = WAIT_MS, signal, onVm }: WaitOptions = {},
): Promise<void> {
  const deadline = performance.now() + timeout_ms;
  for (;;) {
    let instance: Instance;
    try {
      instance = await transport.call('getInstance', { path: { id } }, { signal });
    } catch (error) {
      if (error instanceof BerthError && error.code === 'NOT_FOUND') return;
      throw error;
    }
    onVm?.(instance.vm);
    if (performance.now() >= deadline) {
      throw new VmWaitError(
        `the instance is still there after ${Math.round(timeout_ms / 1_000)} s`,
        instance.vm,
      );
    }
    await wait(DELETED_EVERY_MS, signal);
  }
}

/** The VM of one instance. */
export class VmHandle {
  readonly id: string;
  readonly #transport: Transport;

  /** @param id the instance's */
  constructor(transport: Transport, id: string) {
    this.#transport = transport;
    this.id = id;
  }

  /** Files of its guest. */
  get files(): Files {
    return new Files(this.#transport, this.id);
  }

  get(options: CallOptions = {}): Promise<Vm> {
    return this.#transport.call('getVm', { path: { id: this.id } }, options);
  }

  /** Starts the VM, and waits until SSH works. With `await using`, the end of the scope stops and saves it. */
  async start(options: WaitOptions = {}): Promise<RunningVm> {
    await this.#transport.call('startVm', { path: { id: this.id } }, { signal: options.signal });
    const vm = await waitForVm(this.#transport, this.id, 'running', { ...options, begun: true });
    return new RunningVm(this.#transport, this.id, vm);
  }

  /** Stops the VM, and waits until all its writes are in object storage. */
  async stop({ force, ...options }: WaitOptions & { readonly force?: boolean } = {}): Promise<Vm> {
    const query = force === true ? { force: 'true' as const } : {};
    await this.#transport.call('stopVm', { path: { id: this.id }, query }, { signal: options.signal });
    return waitForVm(this.#transport, this.id, 'stopped', options);
  }

  /** Saves memory and disk together and waits until both are in object storage; `start` continues from there. */
  async suspend(options: WaitOptions = {}): Promise<Vm> {
    await this.#transport.call('suspendVm', { path: { id: this.id } }, { signal: options.signal });
    return waitForVm(this.#transport, this.id, 'suspended', options);
  }

  async restart(options: WaitOptions = {}): Promise<Vm> {
    await this.#transport.call('restartVm', { path: { id: this.id } }, { signal: options.signal });
    return waitForVm(this.#transport, this.id, 'running', { ...options, begun: true });
  }

  /** Makes every write of the guest up to now durable. */
  flush(options: CallOptions = {}): Promise<FlushReceipt> {
    return this.#transport.call('flushVm', { path: { id: this.id } }, options);
  }

  ssh(options: CallOptions = {}): Promise<ConnectionDetails> {
    return this.#transport.call('getSsh', { path: { id: this.id } }, options);
  }

  /**
   * Runs a command to its end and returns its output and exit code, also one that is not 0. A text is a line for `sh -c`; an
   * array is a program and its arguments. @throws OutputLostError
   */
  exec(command: Command, options: ExecOptions = {}): Promise<ExecResult> {
    return runExec(this.#transport, this.id, command, options);
  }

  /** Starts a command, and does not wait for it. It runs on without a reader. */
  startExec(command: Command, options: StartExecOptions = {}): Promise<ExecHandle> {
    return startExec(this.#transport, this.id, command, options);
  }

  /** A handle of a command that was started before, also by another program. */
  async attachExec(exec_id: string, options: CallOptions = {}): Promise<ExecHandle> {
    const exec = await this.#transport.call('getExec', { path: { id: this.id, exec_id } }, options);
    return new ExecHandle(this.#transport, exec);
  }

  /** All that run, and the last 100 that have ended. */
  execs(options: CallOptions = {}): AsyncGenerator<Exec, void, undefined> {
    return itemsOf(this.#transport, 'listExecs', { path: { id: this.id } }, options);
  }
}

export class RunningVm extends VmHandle implements AsyncDisposable {
  /** The VM as of its start. */
  readonly vm: Vm;
  constructor(transport: Transport, id: string, vm: Vm) {
    super(transport, id);
    this.vm = vm;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }
}
