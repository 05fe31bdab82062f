/**
 * Runs the roles as child processes, restarts each that dies, and stops them in the reverse order of their start. A
 * child notices that the launcher has died when its IPC channel closes ({@link exitWithParent}).
 *
 *     running ─ dies ─▶ waiting ─ a random pause: at first up to 0.2 s, later up to 1 s ─▶ running
 *        └──── stop ─▶ SIGTERM, 10 s, SIGKILL ─▶ ended
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { assert } from '../shared/assert.ts';
import { messageOf } from '../shared/errors.ts';
import type { Log } from '../shared/log.ts';
import { backoffMs, pause } from '../shared/retry.ts';

/** The exit code of a child that found its settings invalid and said so on stderr. Counts at the first start only. */
const CONFIGURATION_ERROR_EXIT_CODE = 2;

export interface RoleSpec {
  /** For the log. */
  readonly name: string;
  /** The arguments of the program: `['src/main.ts', 'agent']`. */
  readonly args: readonly string[];
  /** In addition to the environment of all children. */
  readonly env?: Readonly<Record<string, string>>;
}

export interface SuperviseOptions {
  /** In the order of their start. */
  readonly roles: readonly RoleSpec[];
  /** The whole environment of the children. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly log: Log;
  /** node itself unless given. */
  readonly executable?: string;
  readonly cwd?: string;
  /** An open file that the children keep open: the data folder's lock. */
  readonly inherited_fd?: number;
  readonly timing?: Partial<SuperviseTiming>;
}

export interface SuperviseTiming {
  /** The first wait; each further one doubles. */
  readonly backoff_min_ms: number;
  readonly backoff_max_ms: number;
  /** After this uptime the next wait is the first again. */
  readonly healthy_after_ms: number;
  /** From SIGTERM to SIGKILL. */
  readonly grace_ms: number;
}

const TIMING: SuperviseTiming = {
  backoff_min_ms: 200,
  // Everybody waits for it, and it may have died of what somebody sends each time.
  backoff_max_ms: 1_000,
  healthy_after_ms: 30_000,
  grace_ms: 10_000,
};

export interface Supervisor {
  /** Undefined while the role waits for its restart. */
  pid(name: string): number | undefined;
  /** Resolves with the role's name when its first start ended with {@link CONFIGURATION_ERROR_EXIT_CODE}. */
  readonly configuration_error: Promise<string>;
  /** Resolves when every child has ended. Idempotent. */
  stop(): Promise<void>;
  /** Sends SIGKILL to all remaining children. */
  kill(): void;
}

export function supervise(options: SuperviseOptions): Supervisor {
  const timing = { ...TIMING, ...options.timing };
  let refused: (name: string) => void = () => undefined;
  const configuration_error = new Promise<string>((resolve) => {
    refused = resolve;
  });
  const roles = options.roles.map((spec) => new Role(spec, options, timing, () => refused(spec.name)));
  let stopped: Promise<void> | undefined;
  return {
    configuration_error,
    pid: (name) => roles.find((role) => role.spec.name === name)?.pid(),
    stop: () => {
      stopped ??= stopAll(roles);
      return stopped;
    },
    kill: () => {
      for (const role of roles) role.kill();
    },
  };
}

/** In reverse order, because a role may need earlier ones until it has ended. None is restarted meanwhile. */
async function stopAll(roles: readonly Role[]): Promise<void> {
  for (const role of roles) role.end();
  for (const role of roles.toReversed()) await role.stop();
}

type Exit = { readonly code: number | null; readonly signal: NodeJS.Signals | null; readonly error?: Error };

class Role {
  readonly spec: RoleSpec;
  readonly #options: SuperviseOptions;
  readonly #timing: SuperviseTiming;
  readonly #refused: () => void;
  /** Aborts when no further start is wanted. */
  readonly #ending = new AbortController();
  readonly #loop: Promise<void>;
  #child: ChildProcess | undefined;
  #killed = false;

  constructor(spec: RoleSpec, options: SuperviseOptions, timing: SuperviseTiming, refused: () => void) {
    this.spec = spec;
    this.#options = options;
    this.#timing = timing;
    this.#refused = refused;
    this.#loop = this.#run();
  }

  pid(): number | undefined {
    return this.#child?.pid;
  }

  end(): void {
    this.#ending.abort();
  }

  kill(): void {
    this.#killed = true;
    this.#child?.kill('SIGKILL');
  }

  async stop(): Promise<void> {
    this.end();
    this.#child?.kill(this.#killed ? 'SIGKILL' : 'SIGTERM');
    const timer = setTimeout(() => {
      this.#options.log.warn({ name: this.spec.name, pid: this.pid() }, 'the role does not stop; killing it');
      this.kill();
    }, this.#timing.grace_ms);
    await this.#loop;
    clearTimeout(timer);
  }

  async #run(): Promise<void> {
    const { log } = this.#options;
    const { name } = this.spec;
    let attempt = 0;
    for (let first = true; !this.#ending.signal.aborted; first = false) {
      const started_ms = Date.now();
      const exit = await this.#life();
      const life_ms = Date.now() - started_ms;
      if (this.#ending.signal.aborted) return;
      if (first && exit.code === CONFIGURATION_ERROR_EXIT_CODE) {
        this.end();
        this.#refused();
        return;
      }
      if (life_ms >= this.#timing.healthy_after_ms) attempt = 0;
      const wait_ms = backoffMs(attempt++, this.#timing.backoff_min_ms, this.#timing.backoff_max_ms);
      log.error({ name, life_ms, wait_ms, why: describe(exit) }, `role ${name} died; restarting it`);
      await pause(wait_ms, this.#ending.signal);
    }
  }

  /** Runs the child once, until it ends. */
  #life(): Promise<Exit> {
    const { env, log, cwd, inherited_fd } = this.#options;
    return new Promise((resolve) => {
      // Its own session: a Ctrl-C reaches only us, and we stop the children in order.
      const child = spawn(this.#options.executable ?? process.execPath, this.spec.args, {
        env: { ...env, ...this.spec.env },
        stdio: ['ignore', 'inherit', 'inherit', 'ipc', ...(inherited_fd === undefined ? [] : [inherited_fd])],
        detached: true,
        ...(cwd === undefined ? {} : { cwd }),
      });
      this.#child = child;
      child.once('spawn', () => log.info({ name: this.spec.name, child_pid: child.pid }, 'role started'));
      const ended = (exit: Exit) => {
        this.#child = undefined;
        resolve(exit);
      };
      child.once('error', (error) => {
        // Also emitted when a signal cannot be sent. Only a child that never started ends here.
        if (child.pid === undefined) ended({ code: null, signal: null, error });
      });
      child.once('exit', (code, signal) => ended({ code, signal }));
    });
  }
}

function describe({ code, signal, error }: Exit): string {
  if (error !== undefined) return messageOf(error);
  return signal === null ? `exit code ${code}` : signal;
}

/** An orphan that does not stop must end itself: it would keep the data folder locked against the next launcher. */
export const ORPHAN_GRACE_MS = 30_000;

/**
 * For a supervised child: calls `orphaned` once when the launcher is gone, and ends the process `grace_ms` later. Does nothing in
 * a process that {@link supervise} did not start. Does not keep the process alive.
 */
export function exitWithParent(orphaned: () => void, grace_ms = ORPHAN_GRACE_MS): void {
  if (process.channel === undefined) return;
  const end = () => {
    setTimeout(() => process.exit(1), grace_ms).unref();
    orphaned();
  };
  if (!process.connected) {
    end();
    return;
  }
  process.once('disconnect', end);
  process.channel?.unref();
}

/** Under npm one Ctrl-C arrives twice: from the terminal and from npm. */
const ONE_CTRL_C_MS = 1_000;

/**
 * Waits for a signal, or for a role that refuses its settings, then stops everything and resolves with the exit code. A
 * second signal at least `apart_ms` after the first kills the rest. `stopping` is called when the stop begins.
 */
export async function superviseUntilSignal(
  supervisor: Supervisor,
  stopping: () => void,
  apart_ms = ONE_CTRL_C_MS,
): Promise<number> {
  const signals = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const;
  let first_ms: number | undefined;
  let first: (signal: NodeJS.Signals) => void = () => undefined;
  const signalled = new Promise<NodeJS.Signals>((resolve) => {
    first = resolve;
  });
  const onSignal = (signal: NodeJS.Signals) => {
    const now_ms = performance.now();
    if (first_ms === undefined) {
      first_ms = now_ms;
      first(signal);
    } else if (now_ms - first_ms >= apart_ms) supervisor.kill();
  };
  for (const signal of signals) process.on(signal, onSignal);
  try {
    const why = await Promise.race([
      signalled,
      supervisor.configuration_error.then(() => 'refused' as const),
    ]);
    stopping();
    await supervisor.stop();
    assert(first_ms !== undefined || why === 'refused', 'stopped without a reason');
    return why === 'refused' ? CONFIGURATION_ERROR_EXIT_CODE : 0;
  } finally {
    for (const signal of signals) process.off(signal, onSignal);
  }
}

/** Aborts on a signal, or when the launcher that started this process is gone. */
export function shutdownSignal(): AbortSignal {
  const controller = new AbortController();
  const end = () => controller.abort(new Error('shutting down'));
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, end);
  exitWithParent(end);
  return controller.signal;
}

export function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}
