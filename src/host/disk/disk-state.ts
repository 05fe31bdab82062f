/**
 * Keeps what this host knows of one disk: the head, its block map and keys, and the overlay with its sidecar. Loads the
 * head and its map, commits generations, and writes the sidecar. `judge-overlay.ts` decides how the overlay may be
 * used.
 *
 * Invariant: the sidecar says `clean` only after the overlay was synced to the host's disk (`keepAsCache`), and never
 * after a sync has failed.
 */
import { stat } from 'node:fs/promises';
import type { BlockMap } from '../../disk-format/block-map.ts';
import { type DataKey, KeyRing } from '../../disk-format/frame-cipher.ts';
import { loadMap, readDirectory } from '../../disk-format/load-map.ts';
import { diskPrefix, SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { type ControlPlaneClient, ControlPlaneUnavailable, DiskElsewhere } from '../../protocol/client.ts';
import type { CommitResponse, Consistency, DiskHead, SegmentRef } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { errnoOf } from '../../shared/errors.ts';
import type { InstanceId, VmId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { syncFile } from '../durable-file.ts';
import type { HostContext } from '../host-context.ts';
import { type FoundOverlay, judgeOverlay, type OverlayVerdict, type RanSince } from './judge-overlay.ts';
import {
  type Filled,
  inspectOverlay,
  type OverlaySidecar,
  overlayPaths,
  readSidecar,
  removeOverlay,
  writeSidecar,
} from './overlay-files.ts';

/** Another placement has the disk. This machine must end, and its writes since its last commit are void. */
export class FencedError extends Error {
  override name = 'FencedError';
}

/**
 * The head is another commit of this same VM: an earlier agent's commit succeeded after that agent died, or the database lost
 * the newest commits. The overlay still holds everything; the next flush compares all of it and commits again.
 */
export class HeadMovedError extends Error {
  override name = 'HeadMovedError';

  constructor(generation: number) {
    super(`the head is another generation ${generation} of this VM; flush again`);
  }
}

/** Repeats a commit until its outcome is known. @throws FencedError */
async function commitUntilKnown(commit: () => Promise<CommitResponse>, signal: AbortSignal): Promise<string> {
  const answer = await askUntilKnown(commit, signal);
  if (answer.outcome === 'fenced') throw new FencedError(answer.why);
  return answer.durable_at;
}

/** Repeats a request while the control plane is away. Once `signal` aborts, throws the last failure. */
async function askUntilKnown<T>(ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof ControlPlaneUnavailable)) throw error;
      if (!(await pause(backoffMs(attempt, 100, 3_000), signal))) throw error;
    }
  }
}

/** Until the answer to a commit is there; a read of the guest waits meanwhile. */
const RELOAD_AGAIN_MS = 250;
const RELOADS_MAX = 20;

const FRESH_MS = 2_000;

/** Which VM writes to the disk, and in which epoch. */
export interface VmEpoch {
  readonly vm_id: VmId;
  readonly epoch: number;
}

/** The machine that commits. */
export interface Committer extends VmEpoch {
  readonly image: string;
  readonly image_version: string;
}

export interface Commit {
  readonly generation: number;
  readonly commit_id: string;
  readonly segments: readonly SegmentRef[];
  readonly consistency: Consistency;
  readonly dirty_bytes: number;
}

export class InstanceGoneError extends Error {
  override name = 'InstanceGoneError';
}

/** What it needs of its host. */
export interface DiskStateContext extends Pick<HostContext, 'log' | 'store'> {
  readonly client: Pick<ControlPlaneClient, 'head' | 'dataKeys' | 'commit' | 'lineage'>;
  readonly images: Pick<HostContext['images'], 'stored'>;
  readonly paths: Pick<HostContext['paths'], 'overlays'>;
}

export class DiskState {
  readonly instance_id: InstanceId;
  readonly #context: DiskStateContext;
  #head: DiskHead | undefined;
  #keys = KeyRing.none;
  #map: BlockMap | undefined;
  #loading: Promise<BlockMap> | undefined;
  /** When the head was last requested, and for which placement. */
  #asked: { readonly epoch: number; readonly at_ms: number } | undefined;
  #filled: Filled = 'yes';
  /** A sync of the overlay has failed since it was made. */
  #sync_failed = false;
  /** The image version below the overlay; null: unknown. */
  #overlay_image: string | null = null;

  constructor(context: DiskStateContext, instance_id: InstanceId) {
    this.#context = context;
    this.instance_id = instance_id;
  }

  get key_prefix(): string {
    return diskPrefix(this.instance_id);
  }
  get head(): DiskHead {
    return present(this.#head, 'disk head');
  }
  get headOrNull(): DiskHead | null {
    return this.#head ?? null;
  }
  /** As far as this host knows, no generation was ever committed. */
  get hasNoGeneration(): boolean {
    return this.#head?.generation === 0;
  }
  get map(): BlockMap {
    return present(this.#map, 'block map');
  }
  /** Decrypts its objects. */
  get keys(): KeyRing {
    return this.#keys;
  }
  /** Encrypts new objects; null: they are not encrypted. */
  get write_key(): DataKey | null {
    return this.head.encryption ? this.#keyFor('disk') : null;
  }
  /** Encrypts saved memory, which is always encrypted. */
  get memory_key(): DataKey {
    return this.#keyFor('memory');
  }
  #keyFor(use: 'disk' | 'memory'): DataKey {
    const found = present(
      this.head.keys.find((key) => key.use === use),
      `the data key that encrypts a ${use}`,
    );
    return { key_id: found.key_id, key: Buffer.from(found.key, 'base64') };
  }
  get size_bytes(): number {
    return this.head.size_bytes;
  }

  /**
   * The head for a machine of this placement, which alone commits to it. Uses the answer of a {@link refresh} for this epoch if
   * it is fresh, and only once. @throws InstanceGoneError
   */
  async headFor(epoch: number): Promise<DiskHead> {
    const asked = this.#asked;
    this.#asked = undefined;
    const is_fresh = asked?.epoch === epoch && performance.now() - asked.at_ms < FRESH_MS;
    return is_fresh ? this.head : this.refresh();
  }

  /**
   * Requests the head, and drops the map if the head moved. `epoch`: lets {@link headFor} use the answer for this placement.
   * @throws InstanceGoneError, FencedError
   */
  async refresh(epoch?: number): Promise<DiskHead> {
    this.#asked = undefined;
    const at_ms = performance.now();
    const head = await this.#askHead();
    const moved = this.#head?.commit_id !== head.commit_id;
    // Compaction has moved the same content to other objects, and will remove the old ones.
    const elsewhere = !moved && !isSameLayers(this.#head?.layers ?? [], head.layers);
    this.#head = head;
    this.#keys = keyRingOf(head);
    if (moved || elsewhere) this.#map = undefined;
    if (epoch !== undefined) this.#asked = { epoch, at_ms };
    return head;
  }

  async #askHead(): Promise<DiskHead> {
    const head = await this.#context.client.head(this.instance_id).catch((error: unknown) => {
      throw error instanceof DiskElsewhere ? new FencedError(error.message, { cause: error }) : error;
    });
    if (!head) throw new InstanceGoneError(`${this.instance_id} is gone`);
    return head;
  }

  /**
   * Requests the current keys for new objects: a fork knows the keys that were used before it. Waits while the control plane is
   * away. @throws FencedError
   */
  async renewKeys({ vm_id, epoch }: VmEpoch, signal: AbortSignal): Promise<void> {
    const { instance_id } = this;
    const answer = await askUntilKnown(
      () => this.#context.client.dataKeys({ instance_id, vm_id, epoch }),
      signal,
    );
    if (answer.outcome === 'fenced') throw new FencedError('another placement has the disk');
    const { keys, encryption } = answer;
    this.#head = { ...this.head, keys, encryption };
    this.#keys = keyRingOf(this.#head);
  }

  /** Loads head and map, once. @throws SegmentCorruptError naming a missing or damaged segment */
  async load(): Promise<void> {
    const head = this.#head ?? (await this.refresh());
    if (this.#map) return;
    try {
      await this.#loadMap(head);
    } catch (error) {
      if (!(error instanceof SegmentCorruptError)) throw error;
      // Compaction may have moved the blocks and removed the objects that this host knew.
      const now = await this.refresh();
      if (isSameLayers(head.layers, now.layers)) throw error;
      await this.#loadMap(now);
    }
  }

  async #loadMap({ layers }: DiskHead): Promise<void> {
    this.#map = await loadMap({ store: this.#context.store, layers, keys: this.#keys });
  }

  /** The map for reads while a machine runs. `anew`: reload it, because compaction may have moved blocks. */
  async mapForReads(anew: boolean): Promise<BlockMap> {
    if (this.#map && !anew) return this.#map;
    this.#loading ??= this.#reload().finally(() => {
      this.#loading = undefined;
    });
    return this.#loading;
  }

  /**
   * Replaces the map in one step, and only by a map of the same generation: a flush may be under way. If one commits meanwhile, or
   * the answer to its commit is still on its way, it loads again: the old map may name objects that compaction has removed. A
   * database that was set back stays different until the next flush; then the old map is all that there is.
   */
  async #reload(): Promise<BlockMap> {
    for (let attempt = 0; ; attempt++) {
      const head = await this.#askHead();
      const keys = keyRingOf(head);
      const map = await loadMap({ store: this.#context.store, layers: head.layers, keys });
      const known = this.#head;
      if (known === undefined || known.commit_id === head.commit_id) {
        this.#head = head;
        this.#keys = keys;
        this.#map = map;
        return map;
      }
      if (attempt === RELOADS_MAX) return this.#map ?? map;
      await pause(RELOAD_AGAIN_MS);
    }
  }

  /** How far the overlay is filled from the head. */
  get filled(): Filled {
    return this.#filled;
  }
  /** Written to the sidecar by the next {@link markDirty}. */
  setFilled(filled: Filled): void {
    this.#filled = filled;
  }

  get overlay_image(): string | null {
    return this.#overlay_image;
  }
  /** Like {@link setFilled}. */
  setOverlayImage(version: string | null): void {
    this.#overlay_image = version;
  }

  /** A new overlay takes the place of the old one. */
  noteNewOverlay(): void {
    this.#filled = this.head.generation === 0 ? 'yes' : 'no';
    this.#sync_failed = false;
  }

  /** Judges the overlay on this host against the head. */
  async judgeOverlay(since: RanSince): Promise<OverlayVerdict> {
    const found = await this.#findOverlay();
    const { sidecar } = found;
    const is_head = typeof sidecar === 'object' && sidecar.commit_id === this.head.commit_id;
    const asked = typeof sidecar === 'object' && !(is_head && sidecar.clean) ? sidecar : null;
    const lineage = await (asked ? this.#askLineage(asked) : { known: true, continues: true });
    const verdict = judgeOverlay(found, this.head, since, lineage);
    if (verdict.use === 'none' || typeof sidecar !== 'object') return verdict;
    // A killed QEMU may not have written blocks that the sidecar counts as filled: read them from the head until verified.
    const is_whole = sidecar.filled !== 'no';
    this.#filled = is_whole && verdict.use === 'unsaved' ? 'unverified' : sidecar.filled;
    this.#overlay_image = sidecar.image_version;
    this.#sync_failed ||= sidecar.sync_failed;
    return verdict;
  }

  #askLineage({ vm_id, generation, commit_id }: Pick<OverlaySidecar, 'vm_id' | 'generation' | 'commit_id'>) {
    const { client } = this.#context;
    return client.lineage({ instance_id: this.instance_id, vm_id, generation, commit_id });
  }

  async #findOverlay(): Promise<FoundOverlay> {
    const folder = this.#context.paths.overlays;
    const { overlay } = overlayPaths(folder, this.instance_id);
    const sidecar = await readSidecar(folder, this.instance_id);
    if (!(await exists(overlay))) return { file: 'none', sidecar };
    const look = await inspectOverlay(overlay);
    if (look.problem !== null) {
      // It is damaged, or somebody broke out of the guest.
      this.#context.log.error(
        { overlay, problem: look.problem },
        'an overlay with a bad header is not opened',
      );
      return { file: 'damaged', sidecar };
    }
    // Disks never shrink. A larger overlay grew in a time that the database has lost.
    return { file: look.size_bytes > this.size_bytes ? 'damaged' : 'whole', sidecar };
  }

  /** Sidecar: the overlay holds this VM's writes after the head. */
  async markDirty({ vm_id, epoch }: VmEpoch): Promise<void> {
    await this.#writeSidecar({ ...writer({ vm_id, epoch }), clean: false });
  }

  /**
   * Everything in the overlay is committed, and no VM has it open: it becomes a clean cache of the head. It is synced first, which
   * QEMU's end does not do. An overlay that cannot be synced, or could not before, is removed: nothing in it is needed.
   */
  async keepAsCache(placement: VmEpoch): Promise<void> {
    const { log, paths } = this.#context;
    if (!this.#sync_failed) {
      const failure = await this.syncOverlay(placement).catch((error: unknown) => ({ error }));
      if (!failure) return this.#writeSidecar({ ...writer(placement), clean: true });
      log.error(
        { err: failure.error },
        'the overlay cannot be synced; it is removed, and all of it is saved',
      );
    }
    await removeOverlay(paths.overlays, this.instance_id);
  }

  /** Syncs the overlay to the host's disk. A failure is recorded: a later sync would succeed without having written anything. */
  async syncOverlay(placement: VmEpoch): Promise<void> {
    try {
      await syncFile(overlayPaths(this.#context.paths.overlays, this.instance_id).overlay);
    } catch (error) {
      await this.noteSyncFailed(placement);
      throw error;
    }
  }

  /** The overlay is never clean again. */
  async noteSyncFailed(placement: VmEpoch): Promise<void> {
    if (this.#sync_failed) return;
    this.#sync_failed = true;
    // If this fails, too, the next sidecar says it.
    await this.markDirty(placement).catch((err: unknown) =>
      this.#context.log.warn({ err }, 'the sidecar of an overlay could not be written'),
    );
  }

  async #writeSidecar(of: Pick<OverlaySidecar, 'vm_id' | 'placement' | 'clean'>): Promise<void> {
    const { generation, commit_id } = this.head;
    const sidecar = {
      generation,
      commit_id,
      ...of,
      sync_failed: this.#sync_failed,
      filled: this.#filled,
      image_version: this.#overlay_image,
    };
    await writeSidecar(this.#context.paths.overlays, this.instance_id, sidecar);
  }

  /** Commits durable segments, then moves head and map. `signal` interrupts it until it is sent. @throws FencedError, HeadMovedError */
  async commit(
    client: Pick<ControlPlaneClient, 'commit'>,
    record: Committer,
    flush: Commit,
    signal: AbortSignal,
    outcome_signal = signal,
  ): Promise<void> {
    const { segments } = flush;
    // A generation is a delta of its image, and worth nothing without it.
    await this.#context.images.stored(record.image, record.image_version, signal);
    const { commit_id: parent_id } = this.head;
    const ask = () =>
      client.commit({
        instance_id: this.instance_id,
        vm_id: record.vm_id,
        epoch: record.epoch,
        generation: flush.generation,
        commit_id: flush.commit_id,
        parent_id,
        image_version: record.image_version,
        segments,
        consistency: flush.consistency,
        dirty_bytes: flush.dirty_bytes,
      });
    // Read before the commit: after it, head and map must move together, and nothing may fail in between.
    const directories = [];
    for (const segment of segments)
      directories.push(await readDirectory(this.#context.store, segment, this.#keys));
    signal.throwIfAborted();
    const durable_at = await commitUntilKnown(ask, outcome_signal).catch((error: unknown) =>
      this.#explainRefusal(error, record),
    );
    this.#head = {
      ...this.head,
      generation: flush.generation,
      commit_id: flush.commit_id,
      image_version: record.image_version,
      durable_at,
      layers: [...this.head.layers, ...segments],
    };
    for (const directory of directories) this.map.applySegment(directory);
    await this.markDirty(record);
  }

  /** The head that refused the commit may itself be a commit of this VM. */
  async #explainRefusal(refusal: unknown, { vm_id, epoch }: VmEpoch): Promise<never> {
    if (!(refusal instanceof FencedError)) throw refusal;
    const { generation, commit_id } = this.head;
    const head = await this.refresh().catch((error: unknown) => {
      throw error instanceof InstanceGoneError || error instanceof FencedError ? refusal : error;
    });
    if (head.epoch !== epoch || head.commit_id === commit_id) throw refusal;
    const { continues } = await this.#askLineage({ vm_id, generation, commit_id });
    throw continues ? new HeadMovedError(head.generation) : refusal;
  }

  /** Whether the head is this flush's commit. */
  hasCommitted(flush: Pick<Commit, 'commit_id'>): boolean {
    return this.head.commit_id === flush.commit_id;
  }
}

function writer({ vm_id, epoch }: VmEpoch): Pick<OverlaySidecar, 'vm_id' | 'placement'> {
  return { vm_id, placement: epoch };
}

function keyRingOf({ keys }: DiskHead): KeyRing {
  return new KeyRing(keys.map(({ key_id, key }) => ({ key_id, key: Buffer.from(key, 'base64') })));
}

function isSameLayers(a: DiskHead['layers'], b: DiskHead['layers']): boolean {
  return a.length === b.length && a.every(({ key }, i) => b[i]?.key === key);
}

async function exists(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile();
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return false;
    throw error;
  }
}
