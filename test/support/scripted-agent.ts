/**
 * A test double of a host's agent. It calls the real internal API with the real client, and reports what the test
 * requests. It has no QEMU and no disk, so it tests the control plane's states and nothing about guests.
 */
import assert from 'node:assert/strict';
import { createHash, randomUUID } from 'node:crypto';
import { ControlPlaneClient, ControlPlaneUnavailable } from '../../src/protocol/client.ts';
import type { HostCall } from '../../src/protocol/host-calls.ts';
import type { DiskReport, HostFacts } from '../../src/protocol/host-types.ts';
import type {
  Assignment,
  CommitRequest,
  CommitResponse,
  FlushFailureCode,
  FlushResult,
  MemoryRef,
  Observation,
  PollResponse,
  Reason,
  SegmentRef,
  VmReasonCode,
} from '../../src/protocol/types.ts';
import type { FlushId, InstanceId } from '../../src/shared/ids.ts';

export const FACTS: HostFacts = {
  accelerator: 'tcg',
  accelerator_reason: 'a test double',
  cpus: 64,
  memory_mib: 1024 * 1024,
  images: [{ id: 'debian-12', version: 'a'.repeat(64) }],
  object_store_problem: null,
  enforces_egress: true,
  isolation_problem: null,
};

export const HOST_KEY = {
  type: 'ssh-ed25519',
  fingerprint: 'SHA256:0123456789012345678901234567890123456789012',
  public_key: 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGQw',
};

export const SSH_ADDRESS = '127.0.0.1:1';

const HEARTBEAT_MS = 5_000;
/** How long a test waits for an assignment. */
const ASSIGNED_WITHIN_MS = 60_000;

export class ScriptedAgent {
  readonly client: ControlPlaneClient;
  #facts: HostFacts = FACTS;
  readonly #known = new Map<InstanceId, Assignment>();
  readonly #flushes = new Map<FlushId, InstanceId>();
  #timer: NodeJS.Timeout | undefined;
  /** Its last report about the host. */
  #beat: Promise<unknown> = Promise.resolve();

  constructor(address: string, token: string, fingerprint?: string) {
    this.client = new ControlPlaneClient({ address, token, ...(fingerprint ? { fingerprint } : {}) });
  }

  /** Starts reporting. */
  async connect(facts: HostFacts = FACTS): Promise<void> {
    this.#facts = facts;
    await this.heartbeat();
    this.#timer ??= setInterval(() => void this.heartbeat().catch(() => undefined), HEARTBEAT_MS).unref();
  }

  /** Sent in order, so that the latest report wins. */
  heartbeat(disks: DiskReport[] = []) {
    const facts = this.#facts;
    const beat = this.#beat.then(() => this.client.heartbeat({ facts, disks }));
    this.#beat = beat.catch(() => undefined);
    return beat;
  }

  /** Stops reporting, after the pending report has arrived. */
  async silence(): Promise<void> {
    clearInterval(this.#timer);
    this.#timer = undefined;
    await this.#beat;
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.client.close();
  }

  async assignments(): Promise<readonly Assignment[]> {
    return (await this.#poll(null)).assignments;
  }

  /** Waits for an assignment of the instance that matches `wanted`. Polls by ETag, as an agent does. */
  async assigned(
    instance_id: InstanceId,
    what = 'it is assigned',
    wanted: (assignment: Assignment) => boolean = () => true,
  ): Promise<Assignment> {
    const given_up = AbortSignal.timeout(ASSIGNED_WITHIN_MS);
    for (let seen: string | null = null; ; ) {
      const answer: PollResponse = await this.#poll(seen, given_up).catch((cause: unknown) => {
        throw new Error(`${instance_id}: waited in vain until ${what}`, { cause });
      });
      const found = answer.assignments.find((each) => each.instance_id === instance_id);
      if (found && wanted(found)) return found;
      seen = answer.etag;
    }
  }

  async #poll(seen: string | null, signal = new AbortController().signal): Promise<PollResponse> {
    const answer = await this.client.poll({ seen }, signal);
    for (const assignment of answer.assignments) {
      this.#known.set(assignment.instance_id, assignment);
      if (assignment.flush_id) this.#flushes.set(assignment.flush_id, assignment.instance_id);
    }
    return answer;
  }

  /** The newest assignment of the instance that this agent has seen, even if it is no longer valid. */
  async known(instance_id: InstanceId): Promise<Assignment> {
    await this.assignments();
    const assignment = this.#known.get(instance_id);
    assert(assignment, `${instance_id} was never assigned`);
    return assignment;
  }

  async observe(instance_id: InstanceId, observed: Observation) {
    const { vm_id, epoch } = await this.known(instance_id);
    return this.client.report({ vm_id, epoch, observed });
  }

  /** Reports that the guest accepts SSH. */
  async ready(
    instance_id: InstanceId,
    recovered: Reason | null = null,
    applied_keys: readonly string[] = [],
    resumed = false,
  ) {
    const { vm_id, epoch, reboots } = await this.known(instance_id);
    return this.client.report({
      vm_id,
      epoch,
      observed: {
        kind: 'running',
        reboots,
        ssh_address: SSH_ADDRESS,
        host_keys: [HOST_KEY],
        applied_keys,
        recovered,
        resumed,
      },
    });
  }

  /** A reference to a memory image of the suspended VM; `change` overrides fields. */
  async memory(instance_id: InstanceId, change: Partial<MemoryRef> = {}): Promise<MemoryRef> {
    const { epoch } = await this.known(instance_id);
    const head = await this.client.head(instance_id);
    const key_id = head?.keys.find(({ use }) => use === 'memory')?.key_id ?? `dk_${'0'.repeat(32)}`;
    return {
      ...{
        key: `disks/${instance_id}/mem/${epoch}-0badcafe`,
        parts: 2,
        authorized_keys: null,
        memory_bytes: 4096,
        stored_bytes: 1024,
      },
      ...{ key_id, salt: `${'c2FsdA'.repeat(7)}c=`, epoch, generation: head?.generation ?? 0 },
      ...{
        frozen: true,
        traits: { qemu: '7.2', hardware: 'h', image_version: 'a'.repeat(64), host_cpu: '' },
      },
      ...change,
    };
  }
  async suspended(instance_id: InstanceId, change: Partial<MemoryRef> = {}) {
    const memory = await this.memory(instance_id, change);
    return this.observe(instance_id, { kind: 'suspended', memory });
  }

  /** Reports that the head has all writes; with `recovered`, an earlier loss, too. */
  async stopped(instance_id: InstanceId, recovered?: Reason) {
    const { commit_id } = await this.#head(instance_id);
    return this.observe(instance_id, { kind: 'stopped', commit_id, ...(recovered ? { recovered } : {}) });
  }
  /** Reports a stop whose last writes are lost. */
  stoppedWithLoss(instance_id: InstanceId, recovered: Reason) {
    return this.observe(instance_id, { kind: 'stopped', commit_id: null, recovered });
  }
  failed(instance_id: InstanceId, code: VmReasonCode = 'vm_died') {
    const guest_ran = code !== 'start_failed';
    return this.observe(instance_id, { kind: 'failed', reason: { code, message: 'It died.' }, guest_ran });
  }
  async #head(instance_id: InstanceId): Promise<{ readonly commit_id: string }> {
    const head = await this.client.head(instance_id).catch(() => null);
    return head ?? { commit_id: randomUUID() };
  }
  deleted(instance_id: InstanceId) {
    return this.observe(instance_id, { kind: 'deleted' });
  }

  /** Waits for a requested flush other than `but`. */
  async askedToFlush(instance_id: InstanceId, but: FlushId | null = null): Promise<FlushId> {
    const { flush_id } = await this.assigned(
      instance_id,
      'a flush is asked for',
      (each) => each.flush_id !== null && each.flush_id !== but,
    );
    assert(flush_id);
    return flush_id;
  }

  beginFlush(flush_id: FlushId) {
    return this.client.reportFlush({ flush_id, state: 'running' });
  }
  /** Names the head of the disk, unless `result` names another commit. */
  async endFlush(flush_id: FlushId, result: Partial<FlushResult> = {}) {
    const instance_id = this.#flushes.get(flush_id);
    const { commit_id } = instance_id ? await this.#head(instance_id) : { commit_id: randomUUID() };
    return this.client.reportFlush({
      ...{ flush_id, state: 'done' },
      result: { ...FLUSH_WORK, commit_id, ...result },
    });
  }
  failFlush(
    flush_id: FlushId,
    code: FlushFailureCode = 'object_store_unavailable',
    message = 'The object store is away.',
  ) {
    return this.client.reportFlush({ flush_id, state: 'failed', error: { code, message } });
  }

  /** Waits for the next requested operation. */
  async nextCall<K extends HostCall['kind']>(
    kind: K,
    given_up = AbortSignal.timeout(ASSIGNED_WITHIN_MS),
  ): Promise<{ id: string; call: Extract<HostCall, { kind: K }> }> {
    for (;;) {
      const { calls } = await this.client.calls({ fresh: false }, given_up);
      const [first] = calls;
      if (!first) continue;
      assert.deepEqual([calls.length, first.call.kind], [1, kind]);
      return first as { id: string; call: Extract<HostCall, { kind: K }> };
    }
  }

  /** Commits `generation` as the VM of the instance; `change` overrides fields. */
  async commit(
    instance_id: InstanceId,
    generation: number,
    change: Partial<CommitRequest> = {},
  ): Promise<CommitResponse> {
    const { vm_id, epoch } = await this.known(instance_id);
    const head = await this.client.head(change.instance_id ?? instance_id).catch((error: unknown) => {
      if (error instanceof ControlPlaneUnavailable) throw error;
      // The disk may belong to another VM now, or to none.
      return null;
    });
    const about = { instance_id: change.instance_id ?? instance_id, epoch: change.epoch ?? epoch };
    const { segments = [segmentOf(about.instance_id, about.epoch, change.generation ?? generation)] } =
      change;
    return this.client.commit({
      instance_id,
      vm_id,
      epoch,
      generation,
      commit_id: commitIdOf(segments),
      parent_id: head?.commit_id ?? randomUUID(),
      image_version: FACTS.images[0]?.version ?? '',
      segments,
      consistency: 'filesystem',
      dirty_bytes: 4096,
      ...change,
    });
  }
}

export function segmentOf(
  instance_id: InstanceId,
  epoch: number,
  generation: number,
  attempt = '00000000',
): SegmentRef {
  const key = `disks/${instance_id}/seg/${epoch}/${generation}-${attempt}-0`;
  return { key, size_bytes: 4096, entries: 1, key_id: null };
}

/** Depends only on the segments, so that a repeated commit has the same id. */
function commitIdOf(segments: readonly SegmentRef[]): string {
  const hex = createHash('sha256').update(JSON.stringify(segments)).digest('hex');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12}).*$/, '$1-$2-$3-$4-$5');
}

export const FLUSH_WORK: Omit<FlushResult, 'commit_id'> = {
  dirty_bytes: 4096,
  uploaded_bytes: 1024,
  segments: 1,
  duration_ms: 12,
  consistency: 'filesystem',
};
