/**
 * `simulated-hosts.ts SOCKET`, with tokens of hosts on stdin, one a line: answers as that many agents through the control plane's
 * internal API, with its real client. Only QEMU and the disks are simulated: a VM runs, stops or is gone as soon as it is asked to.
 * Prints `ready` when all hosts are connected. Ends with its stdin.
 */
import { createInterface } from 'node:readline';
import { ControlPlaneClient } from '../src/protocol/client.ts';
import type { HostFacts } from '../src/protocol/host-types.ts';
import type { Assignment, DiskHead, Observation } from '../src/protocol/types.ts';
import { pause } from '../src/shared/retry.ts';

const FACTS: HostFacts = {
  accelerator: 'tcg',
  accelerator_reason: 'simulated',
  cpus: 64,
  memory_mib: 256 * 1024,
  images: [{ id: 'debian-12', version: 'a'.repeat(64) }],
  object_store_problem: null,
  enforces_egress: true,
  isolation_problem: null,
};
const HEARTBEAT_MS = 5_000;
const LEASE_TIMEOUT_MS = 10_000;
const RETRY_MS = 200;
const HOST_KEY = {
  type: 'ssh-ed25519',
  fingerprint: `SHA256:${'0'.repeat(43)}`,
  public_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQw',
};

/** What a host that does all at once observes; null: nothing new. */
function observationOf({ desired, reboots }: Assignment, head: DiskHead | null): Observation | null {
  switch (desired) {
    case 'running':
      return {
        kind: 'running',
        reboots,
        ssh_address: '127.0.0.1:1',
        host_keys: [HOST_KEY],
        applied_keys: [],
        recovered: null,
      };
    case 'stopped':
      return { kind: 'stopped', commit_id: head?.commit_id ?? null };
    case 'deleted':
      return { kind: 'deleted' };
    default:
      return null;
  }
}

class SimulatedHost {
  readonly #client: ControlPlaneClient;
  readonly #signal: AbortSignal;
  /** The last report about each VM, so that nothing is reported twice. */
  readonly #reported = new Map<string, string>();

  constructor(address: string, token: string, signal: AbortSignal) {
    this.#client = new ControlPlaneClient({ address, token });
    this.#signal = signal;
  }

  async connect(): Promise<void> {
    await this.#client.heartbeat({ facts: FACTS, disks: [] });
    this.#repeat(async () => {
      await pause(HEARTBEAT_MS, this.#signal);
      await this.#client.heartbeat({ facts: FACTS, disks: [] });
      await this.#client.renewLease({ kept_ms: null }, LEASE_TIMEOUT_MS, this.#signal);
    });
    this.#repeat(() => this.#client.calls({ fresh: false }, this.#signal));
    let seen: string | null = null;
    this.#repeat(async () => {
      const answer = await this.#client.poll({ seen }, this.#signal);
      await Promise.all(answer.assignments.map((each) => this.#carryOut(each)));
      seen = answer.etag;
    });
  }

  #repeat(step: () => Promise<unknown>): void {
    void (async () => {
      while (!this.#signal.aborted) {
        await step().catch(() => pause(RETRY_MS, this.#signal));
      }
    })();
  }

  async #carryOut(assignment: Assignment): Promise<void> {
    const { vm_id, epoch, desired, reboots } = assignment;
    const head = desired === 'stopped' ? await this.#client.head(assignment.instance_id) : null;
    const observed = observationOf(assignment, head);
    const now = `${epoch} ${desired} ${reboots}`;
    if (observed === null || this.#reported.get(vm_id) === now) return;
    await this.#client.report({ vm_id, epoch, observed });
    if (observed.kind === 'running') this.#reported.set(vm_id, now);
    else this.#reported.delete(vm_id);
  }
}

const [socket = ''] = process.argv.slice(2);
const ended = new AbortController();
const hosts: SimulatedHost[] = [];
const lines = createInterface({ input: process.stdin });
lines.on('close', () => {
  ended.abort();
  process.exit(0);
});
for await (const line of lines) {
  if (line === '') {
    await Promise.all(hosts.map((host) => host.connect()));
    process.stdout.write('ready\n');
  } else {
    hosts.push(new SimulatedHost(`unix:${socket}`, line, ended.signal));
  }
}
