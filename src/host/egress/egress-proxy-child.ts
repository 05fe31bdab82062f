/**
 * Runs the egress proxy for the agent, as a process of its own: starts it, sends it the state (policies and secrets),
 * takes its denials, and starts it again when it has ended.
 *
 * The proxy's listening sockets are opened in the guests' network namespace. A few lines of Perl (every Debian has it)
 * do that, because Node cannot set IP_TRANSPARENT. A socket with this option accepts connections to any destination and
 * shows which one it was. The proxy itself runs in the agent's network namespace, so it connects as the host does.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { extname, join } from 'node:path';
import type {
  CountedDenial,
  EgressProxyState,
  FromEgressProxy,
  ToEgressProxy,
} from '../../protocol/egress-proxy-messages.ts';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';

export interface EgressProxyChildOptions {
  /** Where guests' packets arrive: a path to enter by nsenter(1); null: this namespace. */
  readonly guest_namespace: string | null;
  /** Where the proxy connects from. */
  readonly own_namespace: string;
  readonly relay_port: number;
  readonly names_port: number;
  /** The proxy's unprivileged user and group. */
  readonly uid: number;
  /** A file with the certificates of the authorities that servers of secrets may have. */
  readonly roots_file: string;
  readonly log: Log;
  readonly takeDenials: (denials: readonly CountedDenial[]) => void;
  /** Lets first packets of `guest` pass to addresses. @throws why they do not pass */
  readonly admit: (guest: string, addresses: readonly string[]) => Promise<void>;
  /** A certificate of an authority for a name, in PEM; null: no secret has it. */
  readonly certify: (authority: string, name: string, public_key: string) => Promise<string | null>;
  /** A server that a secret of `guest` names could not be trusted or reached. */
  readonly takeServerFailure: (guest: string, name: string, reason: string) => void;
}

type State = Omit<EgressProxyState, 'sequence'>;

/** `perl -e … RELAY_PORT NAMES_PORT PROGRAM…`: appends the descriptors of relay, UDP and TCP to PROGRAM's arguments. */
const OPEN_SOCKETS = `
use strict; use Socket; use Fcntl;
my ($relay_port, $names_port, @program) = @ARGV;
sub opened { my ($type, $port, $transparent) = @_;
  socket(my $s, PF_INET, $type, 0) or die "socket: $!";
  setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1) or die "SO_REUSEADDR: $!" if $type == SOCK_STREAM;
  if ($transparent) { setsockopt($s, 0, 19, 1) or die "IP_TRANSPARENT: $!"; }
  bind($s, pack_sockaddr_in($port, INADDR_ANY)) or die "bind $port: $!";
  if ($type == SOCK_STREAM) { listen($s, 1024) or die "listen: $!"; }
  fcntl($s, F_SETFD, 0) or die "fcntl: $!";
  return $s;
}
my @sockets = (opened(SOCK_STREAM, $relay_port, 1), opened(SOCK_DGRAM, $names_port, 0), opened(SOCK_STREAM, $names_port, 0));
my @last = splice @program, -2;
exec @program, (map { fileno $_ } @sockets), @last or die "exec: $!";
`;

/** All VMs with a policy wait for it. */
const RESTART_MAX_MS = 500;

export class EgressProxyChild {
  readonly #options: EgressProxyChildOptions;
  readonly #ending = new AbortController();
  #child: ChildProcess | null = null;
  #state: State | null = null;
  #sequence = 0;
  #confirmed = 0;
  readonly #confirmations = new Signal();
  /** The log has said that addresses cannot be admitted. */
  #is_refusing = false;

  constructor(options: EgressProxyChildOptions) {
    this.#options = options;
  }

  /** Runs until {@link close}. */
  async run(): Promise<void> {
    for (let failures = 0; !this.#ending.signal.aborted; failures++) {
      const started_at = performance.now();
      await this.#runOnce();
      if (performance.now() - started_at > 60_000) failures = 0;
      if (this.#ending.signal.aborted) return;
      this.#options.log.error(
        'the egress proxy ended; VMs with a restricted egress reach only allowed addresses',
      );
      await pause(backoffMs(failures, 100, RESTART_MAX_MS), this.#ending.signal);
    }
  }

  /** Resolves when the proxy has applied it, which may take until the proxy is started again. */
  async apply(state: State): Promise<void> {
    this.#state = state;
    const sequence = ++this.#sequence;
    this.#send();
    const { signal } = this.#ending;
    while (this.#confirmed < sequence && !signal.aborted) await this.#confirmations.wait({ signal });
  }

  /** Ends one that serves and does not take the state: it may still permit what is no longer allowed. One that starts has no state yet. */
  endStalled(): void {
    if (this.#confirmed > 0) this.kill();
  }

  /** It is started again. */
  kill(): void {
    this.#child?.kill('SIGKILL');
  }

  close(): void {
    this.#ending.abort();
    this.kill();
  }

  async #runOnce(): Promise<void> {
    const [program = '', ...args] = this.#command();
    const child = spawn(program, args, {
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      cwd: '/',
      env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    });
    this.#child = child;
    const { promise, resolve } = Promise.withResolvers<void>();
    child.stderr?.on('data', (text: Buffer) => {
      this.#options.log.warn({ text: text.toString('utf8').slice(0, 2_000) }, 'the egress proxy said');
    });
    child.on('message', (message) => this.#take(message as FromEgressProxy));
    child.once('error', () => resolve());
    child.once('close', () => resolve());
    this.#send();
    await promise;
    this.#child = null;
    this.#confirmed = 0;
  }

  #command(): readonly string[] {
    const { guest_namespace, own_namespace, relay_port, names_port, roots_file, uid } = this.#options;
    const enter = (path: string) => ['nsenter', `--net=${path}`, '--'];
    const main = join(
      import.meta.dirname,
      '..',
      '..',
      'egress-proxy',
      `main${extname(import.meta.filename)}`,
    );
    return [
      ...(guest_namespace === null ? [] : enter(guest_namespace)),
      ...['perl', '-e', OPEN_SOCKETS, String(relay_port), String(names_port)],
      ...(guest_namespace === null ? [] : enter(own_namespace)),
      ...[process.execPath, main, roots_file, String(uid)],
    ];
  }

  #send(): void {
    if (this.#state !== null) this.#tell({ type: 'state', ...this.#state, sequence: this.#sequence });
  }

  #tell(message: ToEgressProxy): void {
    if (this.#child?.connected) this.#child.send(message, () => undefined);
  }

  #take(message: FromEgressProxy): void {
    switch (message.type) {
      case 'denied':
        return void this.#options.takeDenials(message.denials);
      case 'server_failed':
        return void this.#options.takeServerFailure(message.guest, message.name, message.reason);
      case 'certificate':
        return void this.#certify(message);
      case 'admit':
        return void this.#admit(message);
      case 'applied':
        this.#confirmed = Math.max(this.#confirmed, message.sequence);
        this.#confirmations.notify();
    }
  }

  async #admit({ change, guest, addresses }: Extract<FromEgressProxy, { type: 'admit' }>): Promise<void> {
    const { admit, log } = this.#options;
    const known = await admit(guest, addresses).then(
      () => true,
      (error: unknown) => {
        if (!this.#is_refusing)
          log.error({ reason: messageOf(error) }, 'VMs cannot reach addresses of allowed names that are new');
        return false;
      },
    );
    this.#is_refusing = !known;
    this.#tell({ type: 'admitted', change, known });
  }

  async #certify({
    authority,
    name,
    public_key,
  }: Extract<FromEgressProxy, { type: 'certificate' }>): Promise<void> {
    const certificate = await this.#options.certify(authority, name, public_key).catch(() => null);
    this.#tell({ type: 'certificate', authority, name, certificate });
  }
}
