/**
 * A disk as this host knows it: the durable head, its block map, and the overlay with its sidecar, whose worth
 * `judge-overlay.ts` decides.
 *
 * Invariant: `clean` is written only once the overlay is on the disk (`markClean`).
 */
import { stat } from 'node:fs/promises';
import { type ControlPlaneClient, DiskElsewhere } from '../../agent-api/client.ts';
import type { Consistency, DiskHead, SegmentRef } from '../../agent-api/types.ts';
import type { BlockMap } from '../../disk-format/block-map.ts';
import { diskPrefix } from '../../disk-format/disk-prefix.ts';
import { type DataKey, KeyRing } from '../../disk-format/key-ring.ts';
import { loadMap, readDirectory } from '../../disk-format/load-map.ts';
import { SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { present } from '../../lib/assert.ts';
import { errnoOf } from '../../lib/errors.ts';
import type { InstanceId, VmId } from '../../lib/ids.ts';
import type { HostContext } from '../host-context.ts';
import { syncFile } from '../vm/durable-file.ts';
import { inspectOverlay, overlayPaths } from '../vm/overlay.ts';
import { type Filled, type OverlaySidecar, readSidecar, writeSidecar } from '../vm/sidecar.ts';
import { askUntilKnown, commitUntilKnown, FencedError, HeadMovedError } from './commit-outcome.ts';
import { type FoundOverlay, judgeOverlay, type OverlayVerdict } from './judge-overlay.ts';

const FRESH_MS = 2_000;

/** Which VM writes to the disk, and in which epoch. */
export interface Placement {
  readonly vm_id: VmId;
  readonly epoch: number;
}

/** The machine that commits. */
export interface Committer extends Placement {
  /** Its image; absent where the machine's record names none. */
  readonly image?: string;
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

export class DiskState {
  readonly instance_id: InstanceId;
  readonly #context: HostContext;
  #head: DiskHead | undefined;
  #keys = KeyRing.none;
  #map: BlockMap | undefined;
  #loading: Promise<BlockMap> | undefined;
  /** When the head was last asked for, and for which placement. */
  #asked: { readonly epoch: number; readonly at_ms: number } | undefined;
  #filled: Filled = 'yes';
  /** What the overlay is a delta of; null: not known here. */
  #overlay_image: string | null = null;

  constructor(context: HostContext, instance_id: InstanceId) {
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
  /** As far as is known here, no generation was ever committed. */
  get hasNoGeneration(): boolean {
    return this.#head?.generation === 0;
  }
  get map(): BlockMap {
    return present(this.#map, 'block map');
  }
  /** What opens its objects. */
  get keys(): KeyRing {
    return this.#keys;
  }
  /** What to encrypt new ones with; null: not at all. */
  get write_key(): DataKey | null {
    return this.head.encryption ? this.#keyFor('disk') : null;
  }
  /** What memory is encrypted with, whether or not new objects of the disk are. */
  get memory_key(): DataKey {
    return this.#keyFor('memory');
  }
  #keyFor(use: 'disk' | 'memory'): DataKey {
    const found = present(
      this.head.keys.find((key) => key.use === use),
      `the data key to write a ${use} with`,
    );
    return { key_id: found.key_id, key: Buffer.from(found.key, 'base64') };
  }
  get size_bytes(): number {
    return this.head.size_bytes;
  }

  /**
   * The head for a machine of this placement, which nobody else commits to: as it was said a moment ago, if it was, and asked
   * for once. @throws InstanceGoneError
   */
  async headFor(epoch: number): Promise<DiskHead> {
    const asked = this.#asked;
    this.#asked = undefined;
    const is_fresh = asked?.epoch === epoch && performance.now() - asked.at_ms < FRESH_MS;
    return is_fresh ? this.head : this.refresh();
  }

  /**
   * Asks the control plane for the head anew, and forgets the map if it moved. `epoch`: the placement that
   * {@link headFor} may take it for. @throws InstanceGoneError, FencedError
   */
  async refresh(epoch?: number): Promise<DiskHead> {
    this.#asked = undefined;
    const at_ms = performance.now();
    const head = await this.#askHead();
    const moved = this.#head?.commit_id !== head.commit_id;
    // Compaction: the same content, elsewhere. What was there before is removed after a while.
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
   * Asks what new objects are to be encrypted with from now on: a fork has what they were encrypted with before it.
   * Waits for a control plane that is away. @throws FencedError
   */
  async renewKeys({ vm_id, epoch }: Placement, signal: AbortSignal): Promise<void> {
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

  /** Head and map, once. @throws SegmentCorruptError naming a segment that is missing or damaged */
  async load(): Promise<void> {
    const head = this.#head ?? (await this.refresh());
    if (this.#map) return;
    try {
      await this.#loadMap(head);
    } catch (error) {
      if (!(error instanceof SegmentCorruptError)) throw error;
      // Compaction has moved the blocks meanwhile, and removed the objects that were known here.
      const now = await this.refresh();
      if (isSameLayers(head.layers, now.layers)) throw error;
      await this.#loadMap(now);
    }
  }

  async #loadMap({ layers }: DiskHead): Promise<void> {
    this.#map = await loadMap({ store: this.#context.store, layers, keys: this.#keys });
  }

  /** The map for reads while a machine runs: loaded if it is not yet; `anew`, from where the head's blocks lie now. */
  async mapForReads(anew: boolean): Promise<BlockMap> {
    if (this.#map && !anew) return this.#map;
    this.#loading ??= this.#reload().finally(() => {
      this.#loading = undefined;
    });
    return this.#loading;
  }

  /** Replaces the map in one step, and only by one of the same generation: a flush may be under way. */
  async #reload(): Promise<BlockMap> {
    const commit_id = this.#head?.commit_id;
    const head = await this.#askHead();
    const keys = keyRingOf(head);
    const map = await loadMap({ store: this.#context.store, layers: head.layers, keys });
    const known = this.#head;
    if (known !== undefined && known.commit_id !== commit_id && this.#map) return this.#map;
    if (known !== undefined && known.commit_id !== head.commit_id) return this.#map ?? map;
    this.#head = head;
    this.#keys = keys;
    this.#map = map;
    return map;
  }

  /** What unwritten clusters of the overlay are. */
  get filled(): Filled {
    return this.#filled;
  }
  /** As far as the next {@link markDirty} says. */
  setFilled(filled: Filled): void {
    this.#filled = filled;
  }

  get overlay_image(): string | null {
    return this.#overlay_image;
  }
  /** As {@link setFilled}. */
  setOverlayImage(version: string | null): void {
    this.#overlay_image = version;
  }

  /** What the overlay on this host is worth against the head for a host whose own the disk is since epoch `own_since`. */
  async judgeOverlay(own_since: number): Promise<OverlayVerdict> {
    const found = await this.#findOverlay();
    const { sidecar } = found;
    const is_head = typeof sidecar === 'object' && sidecar.commit_id === this.head.commit_id;
    const told = typeof sidecar === 'object' && !(is_head && sidecar.clean) ? sidecar : null;
    const lineage = await (told ? this.#askLineage(told) : { known: true, continues: true });
    const verdict = judgeOverlay(found, this.head, own_since, lineage);
    if (verdict.use === 'none' || typeof sidecar !== 'object') return verdict;
    // Whose QEMU was killed may lack what that one had not written yet: the head is read there, until it was looked at.
    const is_whole = sidecar.filled !== 'no';
    this.#filled = is_whole && verdict.use === 'unsaved' ? 'unverified' : sidecar.filled;
    this.#overlay_image = sidecar.image_version;
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
      // Damage, or the doing of somebody who got out of a guest.
      this.#context.log.error({ overlay, problem: look.problem }, 'an overlay is not opened');
      return { file: 'damaged', sidecar };
    }
    // A disk never shrinks: one that is larger has grown in a time that the database has lost.
    return { file: look.size_bytes > this.size_bytes ? 'damaged' : 'whole', sidecar };
  }

  /** The overlay holds what this VM writes after the head. */
  async markDirty({ vm_id, epoch }: Placement): Promise<void> {
    await this.#writeSidecar({ vm_id, placement: epoch, clean: false });
  }

  /** The overlay is the head, and no VM has it open. It is on the disk before that is said: QEMU's end does not see to it. */
  async markClean({ vm_id, epoch }: Placement): Promise<void> {
    await syncFile(overlayPaths(this.#context.paths.overlays, this.instance_id).overlay);
    await this.#writeSidecar({ vm_id, placement: epoch, clean: true });
  }

  async #writeSidecar(of: Pick<OverlaySidecar, 'vm_id' | 'placement' | 'clean'>): Promise<void> {
    const { generation, commit_id } = this.head;
    const sidecar = {
      generation,
      commit_id,
      ...of,
      filled: this.#filled,
      image_version: this.#overlay_image,
    };
    await writeSidecar(this.#context.paths.overlays, this.instance_id, sidecar);
  }

  /** Commits segments that are all durable, moves the head, and takes them into the map. @throws FencedError, HeadMovedError */
  async commit(
    client: ControlPlaneClient,
    record: Committer,
    flush: Commit,
    signal: AbortSignal,
  ): Promise<void> {
    const { segments } = flush;
    // What is durable without the image that it is a delta of would be worth nothing.
    if (record.image !== undefined) {
      await this.#context.images.stored(record.image, record.image_version, signal);
    }
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
    // Before it counts: once it does, head and map must move together, and that nothing may fail in between.
    const directories = [];
    for (const segment of segments)
      directories.push(await readDirectory(this.#context.store, segment, this.#keys));
    const durable_at = await commitUntilKnown(ask, signal).catch((error: unknown) =>
      this.#unlessOurs(error, record),
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

  /** The head that refuses the commit may be another one of this VM, which nobody else commits to. */
  async #unlessOurs(refusal: unknown, { vm_id, epoch }: Placement): Promise<never> {
    if (!(refusal instanceof FencedError)) throw refusal;
    const { generation, commit_id } = this.head;
    const head = await this.refresh().catch((error: unknown) => {
      throw error instanceof InstanceGoneError || error instanceof FencedError ? refusal : error;
    });
    if (head.epoch !== epoch || head.commit_id === commit_id) throw refusal;
    const { continues } = await this.#askLineage({ vm_id, generation, commit_id });
    throw continues ? new HeadMovedError(head.generation) : refusal;
  }

  /** Whether the head is what this flush has made. */
  hasCommitted(flush: Pick<Commit, 'commit_id'>): boolean {
    return this.head.commit_id === flush.commit_id;
  }
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
