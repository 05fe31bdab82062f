/**
 * Keeps the roles running: each a child process, started again when it dies, stopped in the reverse of the order they
 * were started in. A child hears of our death by the end of its IPC channel ({@link exitWithParent}).
 *
 *     running ─ dies ─▶ waiting (0.2 s … 5 s, from the start again after 30 s of life) ─▶ running
 *        └──── stop ─▶ SIGTERM, 10 s, SIGKILL ─▶ ended
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { assert } from '../lib/assert.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import { messageOf } from '../lib/errors.ts';
import type { Log } from '../lib/log.ts';

/** A child that ends so at its first start has said on stderr what is wrong with its settings. */
export const CONFIGURATION_ERROR_EXIT_CODE = 2;

export interface RoleSpec {
  /** For the log. */
  readonly name: string;
  /** What follows the program: `['src/main.ts', 'host']`. */
  readonly args: readonly string[];
  /** On top of what all children get. */
  readonly env?: Readonly<Record<string, string>>;
}

export interface SuperviseOptions {
  /** In the order they start. */
  readonly roles: readonly RoleSpec[];
  /** The whole environment of the children. */
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly log: Log;
  /** node itself unless given. */
  readonly executable?: string;
  readonly cwd?: string;
  /** An open file the children keep open as long as they live: the data folder's lock. */
  readonly inherited_fd?: number;
  readonly timing?: Partial<SuperviseTiming>;
}

export interface SuperviseTiming {
  /** Of the first wait; it doubles with each. */
  readonly backoff_min_ms: number;
  readonly backoff_max_ms: number;
  /** A life this long makes the next wait the shortest again. */
  readonly healthy_after_ms: number;
  /** From SIGTERM to SIGKILL. */
  readonly grace_ms: number;
}

const TIMING: SuperviseTiming = {
  backoff_min_ms: 200,
  backoff_max_ms: 5_000,
  healthy_after_ms: 30_000,
  grace_ms: 10_000,
};

export interface Supervisor {
  /** Of the role's process now; undefined while it waits to be started again. */
  pid(name: string): number | undefined;
  /** Settles when a role's first start ended with {@link CONFIGURATION_ERROR_EXIT_CODE}: its name. */
  readonly configuration_error: Promise<string>;
  /** Resolves when every child has ended. Idempotent. */
  stop(): Promise<void>;
  /** SIGKILL for what is still there. */
  hurry(): void;
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
    hurry: () => {
      for (const role of roles) role.kill();
    },
  };
}

/** One after another, for a role may need those before it until it has ended; none is started again meanwhile. */
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
  #hurried = false;

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
    this.#hurried = true;
    this.#child?.kill('SIGKILL');
  }

  async stop(): Promise<void> {
    this.end();
    this.#child?.kill(this.#hurried ? 'SIGKILL' : 'SIGTERM');
    const timer = setTimeout(() => {
      this.#options.log.warn({ name: this.spec.name, pid: this.pid() }, 'role does not stop; killing it');
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
      log.error({ name, life_ms, wait_ms, why: describe(exit) }, `role ${name} died; starting it again`);
      await pause(wait_ms, this.#ending.signal);
    }
  }

  /** From one start to its end. */
  #life(): Promise<Exit> {
    const { env, log, cwd, inherited_fd } = this.#options;
    return new Promise((resolve) => {
      // A session of its own: a Ctrl-C in the terminal is for us, and we stop the children in order.
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
        // Also comes when a signal or message can't be sent; only a child that never was ends here.
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

/** Nobody kills an orphan that does not stop, and it would hold the data folder's lock against the next launcher. */
export const ORPHAN_GRACE_MS = 30_000;

/**
 * For a supervised child: calls `orphaned` once when the launcher has gone, however it went, and ends the process if it is
 * still there `grace_ms` later. Does nothing in a process that was not started by {@link supervise}, and does not keep the
 * process alive.
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

/** One Ctrl-C comes twice under npm: from the terminal, whose signals go to all in front, and passed on by npm. */
const ONE_CTRL_C_MS = 1_000;

/**
 * Until a signal asks to stop or a role refuses its settings; then stops everything. Resolves with our exit code. A
 * second signal, `apart_ms` after the first at least, kills what is left. `asked` is called at once when stopping begins.
 */
export async function superviseUntilSignal(
  supervisor: Supervisor,
  asked: () => void,
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
    } else if (now_ms - first_ms >= apart_ms) supervisor.hurry();
  };
  for (const signal of signals) process.on(signal, onSignal);
  try {
    const why = await Promise.race([
      signalled,
      supervisor.configuration_error.then(() => 'refused' as const),
    ]);
    asked();
    await supervisor.stop();
    assert(first_ms !== undefined || why === 'refused', 'stopped without a reason');
    return why === 'refused' ? CONFIGURATION_ERROR_EXIT_CODE : 0;
  } finally {
    for (const signal of signals) process.off(signal, onSignal);
  }
}
