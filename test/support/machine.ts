/**
 * Runs the machines of a fleet, each in namespaces of its own, on one network that nobody else sees:
 *
 *     switch (br0, .1) ─ control-1 (.11), front-1 (.21), rack-1 (.31), …
 *
 * - A machine has its own host name, processes, addresses and files. Commands run there as root, without systemd.
 * - What it writes to /etc, /home, /root, /usr and /var lies over this machine's files, and is kept until `close`.
 *   /run, /tmp and /dev/shm are empty at first.
 * - All machines end with this process, however it ends. Only control groups and a folder in /tmp may remain.
 */
import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, readlinkSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { allPids } from '../../src/host/qemu/qemu-process.ts';
import { endIfInterrupted } from './interrupted.ts';
import { childrenOf } from './processes.ts';

const ENV = {
  PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
  LANG: 'C.UTF-8',
  HOME: '/root',
};
/** Ends with its parent, also where that is killed. */
const LEASHED = ['setpriv', '--pdeathsig', 'KILL'] as const;
const OUTPUT_BYTES = 64 << 20;

const SWITCH = `
ip link add br0 type bridge
ip link set lo up
ip link set br0 address 02:00:00:00:00:01 up
ip address add "$1.1/24" dev br0
echo ready
exec sleep infinity`;

/** The first process of a machine. By ignoring SIGCHLD it buries orphans. A project below /tmp stays in sight. */
const INIT = `
files=$1
for folder in etc home root usr var; do
  mkdir -p "$files/$folder" "$files/work/$folder"
  chmod --reference="/$folder" "$files/$folder"
  mount -t overlay -o "lowerdir=/$folder,upperdir=$files/$folder,workdir=$files/work/$folder" overlay "/$folder"
done
for group in "$3" "$3"/*; do
  if [ -d "$group/$4" ]; then mount --bind "$group/$4" "$group"; fi
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 1777 /run/lock /run/shm
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
case "$5" in
  /tmp/*)
    mkdir -p "$files$5"
    mount --bind "$5" "$files$5"
    ;;
esac
mount --rbind "$files/tmp" /tmp
hostname "$2"
ip link set lo up
trap '' CHLD
echo ready
exec sleep infinity`;

const CGROUPS = '/sys/fs/cgroup';
const PROJECT = join(import.meta.dirname, '..', '..');

export interface RunOptions {
  readonly input?: string;
  readonly env?: Readonly<Record<string, string>>;
}

export class MachineNetwork {
  /** Its files, and logs of what runs in machines. */
  readonly folder: string;
  readonly net: string;
  readonly #machines: Machine[] = [];
  readonly #switch: ChildProcess;
  readonly #forget: () => void;

  private constructor(net: string) {
    this.net = net;
    this.folder = mkdtempSync(join(tmpdir(), 'berth-machines-'));
    chmodSync(this.folder, 0o755);
    this.#switch = holder(['unshare', '--net', 'sh', '-euc', SWITCH, 'switch', net]);
    this.#forget = endIfInterrupted(() => this.close());
  }

  /** `net`: the first three numbers of the machines' addresses. */
  static async open(net = '10.0.0'): Promise<MachineNetwork> {
    const network = new MachineNetwork(net);
    try {
      await ready(network.#switch);
      return network;
    } catch (error) {
      await network.close();
      throw error;
    }
  }

  /** Boots a machine. `number`: the last one of its address. */
  async machine(name: string, number: number): Promise<Machine> {
    const machine = new Machine(this, name, `${this.net}.${number}`);
    this.#machines.push(machine);
    await machine.boot();
    return machine;
  }

  /** Where the machines' cables end, for `ip`, `tc` and `nft`: see `Machine.port`. */
  run(command: string, ...args: string[]): string {
    const enter = [`--net=/proc/${this.#switch.pid}/ns/net`, '--', command, ...args];
    return execFileSync('nsenter', enter, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  }

  async close(): Promise<void> {
    this.#forget();
    for (const machine of this.#machines) await machine.powerOff();
    for (const machine of this.#machines) machine.removeGroups();
    await ended(this.#switch);
    await rm(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

export class Machine {
  readonly name: string;
  readonly address: string;
  /** The switch's end of its cable. */
  readonly port: string;
  readonly #network: MachineNetwork;
  readonly #files: string;
  readonly #group: string;
  /** Of commands that run in it. Each waits outside for its child in the machine, and stops when that is stopped. */
  readonly #entered = new Set<ChildProcess>();
  #holder: ChildProcess | undefined;
  #init = 0;

  constructor(network: MachineNetwork, name: string, address: string) {
    this.#network = network;
    this.name = name;
    this.address = address;
    this.port = `v-${name}`;
    this.#files = join(network.folder, name);
    this.#group = `berth-machine-${process.pid}-${name}`;
    mkdirSync(join(this.#files, 'tmp'), { recursive: true });
    chmodSync(join(this.#files, 'tmp'), 0o1777);
  }

  /** Starts it, the first time or after `powerOff`, with the files that it has. Nothing else runs in it yet. */
  async boot(): Promise<void> {
    for (const root of controllers()) mkdirSync(join(root, this.#group), { recursive: true });
    const spaces = ['--mount', '--uts', '--ipc', '--net', '--pid', '--kill-child', '--mount-proc'];
    const about = [this.#files, this.name, CGROUPS, this.#group, PROJECT];
    const init = ['sh', '-euc', INIT, 'init', ...about];
    this.#holder = holder(['unshare', ...spaces, ...init]);
    await ready(this.#holder);
    this.#init = childrenOf(this.#holder.pid ?? 0)[0] ?? 0;
    const cable = ['type', 'veth', 'peer', 'name', 'e0', 'netns', String(this.#init)];
    this.#network.run('ip', 'link', 'add', this.port, ...cable);
    this.#network.run('ip', 'link', 'set', this.port, 'master', 'br0', 'up');
    const { net } = this.#network;
    await this.sh(`ip address add ${this.address}/24 dev e0 && ip link set e0 up
      ip route add default via ${net}.1`);
  }

  /** Ends all its processes at once. Its files stay, without what was in /run and /dev/shm. */
  async powerOff(): Promise<void> {
    if (!this.#holder) return;
    // The kernel ends the others before the first process is gone, and its parent then exits.
    if (this.#init !== 0) signal(this.#init, 'SIGKILL');
    // Each of these has to bury its own one, and may be stopped.
    for (const child of this.#entered) child.kill('SIGCONT');
    await ended(this.#holder, this.#init === 0);
    this.#init = 0;
  }

  /** Runs a command in it, as root and in `/`, and resolves with its output. Rejects if it fails; the error has its output. */
  async run(command: string, args: readonly string[] = [], options: RunOptions = {}): Promise<string> {
    const [program, ...words] = this.#enter([command, ...args]);
    const asked = promisify(execFile)(program, words, {
      ...{ env: { ...ENV, ...options.env }, encoding: 'utf8', maxBuffer: OUTPUT_BYTES },
    });
    this.#note(asked.child);
    asked.child.stdin?.on('error', () => undefined).end(options.input ?? '');
    return (await asked).stdout;
  }

  sh(script: string, options: RunOptions = {}): Promise<string> {
    return this.run('sh', ['-euc', script], options);
  }

  async write(path: string, text: string, mode = 0o644): Promise<void> {
    await this.sh(`mkdir -p "$(dirname ${path})" && cat > ${path} && chmod ${mode.toString(8)} ${path}`, {
      input: text,
    });
  }

  /** Starts a command that stays. Its output goes to `NAME-LOG.log` in the network's folder. SIGKILL of the child ends it. */
  spawn(
    log: string,
    command: string,
    args: readonly string[] = [],
    env: RunOptions['env'] = {},
  ): ChildProcess {
    const [program, ...words] = this.#enter([...LEASHED, command, ...args]);
    const out = openSync(this.#log(log), 'a');
    const child = spawn(program, words, { env: { ...ENV, ...env }, stdio: ['ignore', out, out] });
    closeSync(out);
    this.#note(child);
    child.on('error', () => undefined).unref();
    return child;
  }

  /** What commands have written to a log of `spawn`. */
  log(log: string): string {
    return readFileSync(this.#log(log), 'utf8');
  }

  /** All its processes but the first, by their pids outside. */
  pids(): number[] {
    const own = this.#init === 0 ? null : spaceOf(this.#init);
    return allPids().filter((pid) => pid !== this.#init && own !== null && spaceOf(pid) === own);
  }

  /** Stops all its processes, as a machine that hangs. Returns what lets those go on that ran. */
  pause(): () => void {
    const stopped = new Set<number>();
    // Repeated for those that were forked meanwhile.
    for (let found = 1; found > 0; ) {
      const running = this.pids().filter((pid) => !stopped.has(pid) && !isStopped(pid));
      found = running.length;
      for (const pid of running) {
        signal(pid, 'SIGSTOP');
        stopped.add(pid);
      }
    }
    return () => {
      for (const pid of stopped) signal(pid, 'SIGCONT');
      for (const child of this.#entered) child.kill('SIGCONT');
    };
  }

  /** Pulls its cable, or plugs it in again. */
  cable(state: 'up' | 'down'): void {
    this.#network.run('ip', 'link', 'set', this.port, state);
  }

  removeGroups(): void {
    for (const root of controllers()) {
      // The deepest first. A control group's files do not count.
      const find = ['find', join(root, this.#group), '-depth', '-type', 'd', '-exec', 'rmdir', '{}', ';'];
      execFileSync('sh', ['-c', '"$@" 2> /dev/null || true', 'sh', ...find]);
    }
  }

  #note(child: ChildProcess): void {
    this.#entered.add(child);
    child.once('exit', () => this.#entered.delete(child));
  }

  #log(log: string): string {
    return join(this.#network.folder, `${this.name}-${log}.log`);
  }

  #enter(command: readonly string[]): [string, ...string[]] {
    const spaces = ['--mount', '--uts', '--ipc', '--net', '--pid'];
    return ['nsenter', '--target', String(this.#init), ...spaces, '--wd=/', '--', ...command];
  }
}

/** A process that keeps namespaces. */
function holder(command: readonly string[]): ChildProcess {
  const child = spawn(LEASHED[0], [...LEASHED.slice(1), ...command], {
    env: ENV,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  child.on('error', () => undefined);
  return child;
}

async function ready({ stdout, stderr }: ChildProcess): Promise<void> {
  let said = '';
  for (const stream of [stdout, stderr])
    stream?.setEncoding('utf8').on('data', (text: string) => {
      said += text;
    });
  if (stdout) await Promise.race([once(stdout, 'data'), once(stdout, 'end')]);
  if (!said.endsWith('ready\n')) throw new Error(`a machine cannot be made here: ${said}`);
}

async function ended(child: ChildProcess, must_kill = true): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
  const gone = once(child, 'exit');
  if (must_kill) child.kill('SIGKILL');
  await gone;
}

/** Where control groups of version 1 are mounted, or that of version 2. */
function controllers(): string[] {
  const mounts = readFileSync('/proc/self/mountinfo', 'utf8').matchAll(
    / (\/sys\/fs\/cgroup\S*) .* - cgroup2? /g,
  );
  return [...mounts].map(([, path]) => path ?? '');
}

function spaceOf(pid: number): string | null {
  try {
    return readlinkSync(`/proc/${pid}/ns/pid`);
  } catch {
    return null;
  }
}

function isStopped(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return /^[TZ]/.test(stat.slice(stat.lastIndexOf(')') + 2));
  } catch {
    return true;
  }
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has ended.
  }
}
