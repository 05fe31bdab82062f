/**
 * A disk as this host knows it: the durable head, its block map, and the overlay with its sidecar.
 *
 * The sidecar vouches for the overlay: `clean`, it holds exactly the generation named; not clean, that and what a
 * machine of this host wrote after it. It is believed only while the head is still that generation, committed by
 * the same epoch, or was committed by the very placement that wrote the overlay (the sidecar's own renewal was lost
 * in a crash); and, not clean, only if no other host had the disk since.
 */
import { stat } from 'node:fs/promises';
import type { ControlPlaneClient } from '../../agent-api/client.ts';
import type { DiskHead } from '../../agent-api/types.ts';
import type { BlockMap } from '../../disk-format/block-map.ts';
import { type DataKey, KeyRing } from '../../disk-format/key-ring.ts';
import { loadMap, readDirectory } from '../../disk-format/load-map.ts';
import { present } from '../../lib/assert.ts';
import { errnoOf } from '../../lib/errors.ts';
import type { InstanceId } from '../../lib/ids.ts';
import type { HostContext } from '../host-context.ts';
import { type OverlaySidecar, overlayPaths, readSidecar, virtualSize, writeSidecar } from '../vm/overlay.ts';
import { commitUntilKnown, FencedError } from './flush-machine.ts';
import type { FlushRecord, VmRecord } from './record.ts';

const FRESH_MS = 2_000;

/** Where all objects of an instance's disk are. */
export function diskPrefix(instance_id: string): string {
  return `disks/${instance_id}`;
}

export class InstanceGoneError extends Error {
  override name = 'InstanceGoneError';
}

/** A commit that an agent before us had asked for was carried out after that agent's end. Nothing is lost: the flush is done again. */
export class OvertakenError extends Error {
  override name = 'OvertakenError';

  constructor(generation: number) {
    super(
      `generation ${generation} was committed for an agent that had ended; the flush is to be tried again`,
    );
  }
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
  /** Whether the overlay is whole: its unwritten clusters are the base image's. */
  #filled = true;
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
  get isUnsavedYet(): boolean {
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
    return this.head.encryption ? this.own_key : null;
  }
  /** The disk's own, which is there whether or not new objects of the disk are encrypted. */
  get own_key(): DataKey {
    const own = present(
      this.head.keys.find((key) => key.own),
      'the data key to write with',
    );
    return { key_id: own.key_id, key: Buffer.from(own.key, 'base64') };
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
   * {@link headFor} may take it for. @throws InstanceGoneError
   */
  async refresh(epoch?: number): Promise<DiskHead> {
    this.#asked = undefined;
    const at_ms = performance.now();
    const head = await this.#context.client.head(this.instance_id);
    if (!head) throw new InstanceGoneError(`${this.instance_id} is gone`);
    const moved = this.#head?.generation !== head.generation || this.#head.head_epoch !== head.head_epoch;
    // Compaction: the same content, elsewhere. What was there before is removed after a while.
    const elsewhere = !moved && !isSameLayers(this.#head?.layers ?? [], head.layers);
    this.#head = head;
    this.#keys = keyRingOf(head);
    if (moved || elsewhere) this.#map = undefined;
    if (epoch !== undefined) this.#asked = { epoch, at_ms };
    return head;
  }

  /** Head and map, once. @throws SegmentCorruptError naming a segment that is missing or damaged */
  async load(): Promise<void> {
    const head = this.#head ?? (await this.refresh());
    const { store } = this.#context;
    this.#map ??= await loadMap({ store, layers: head.layers, keys: this.#keys });
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
    const generation = this.#head?.generation;
    const head = await this.#context.client.head(this.instance_id);
    if (!head) throw new InstanceGoneError(`${this.instance_id} is gone`);
    const keys = keyRingOf(head);
    const map = await loadMap({ store: this.#context.store, layers: head.layers, keys });
    const known = this.#head;
    if (known !== undefined && known.generation !== generation && this.#map) return this.#map;
    if (known !== undefined && known.generation !== head.generation) return this.#map ?? map;
    this.#head = head;
    this.#keys = keys;
    this.#map = map;
    return map;
  }

  get filled(): boolean {
    return this.#filled;
  }
  /** As far as the next {@link vouch} says. */
  setFilled(filled: boolean): void {
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
  async overlayState(own_since: number): Promise<'none' | 'clean' | 'unsaved'> {
    const folder = this.#context.paths.overlays;
    const { overlay } = overlayPaths(folder, this.instance_id);
    const sidecar = await readSidecar(folder, this.instance_id);
    if (!sidecar || !(await exists(overlay))) return 'none';
    const worth = judgeSidecar(sidecar, this.head, own_since);
    if (worth === 'none') return 'none';
    // All of it is durable: no start is to fail for a copy that a crash of the host has spoilt.
    if (worth === 'clean' && (await virtualSize(overlay)) === null) {
      this.#context.log.warn({ overlay }, 'the overlay is not qcow2; the disk comes from the object store');
      return 'none';
    }
    this.#filled = sidecar.filled;
    this.#overlay_image = sidecar.image_version ?? null;
    return worth;
  }

  async vouch(placement: number, clean: boolean): Promise<void> {
    const { generation, head_epoch } = this.head;
    const version = this.#overlay_image;
    const sidecar: OverlaySidecar = {
      ...{ generation, epoch: head_epoch, placement, clean, filled: this.#filled },
      ...(version === null ? {} : { image_version: version }),
    };
    await writeSidecar(this.#context.paths.overlays, this.instance_id, sidecar);
  }

  /** Commits segments that are all durable, moves the head, and takes them into the map. @throws FencedError, OvertakenError */
  async commit(
    client: ControlPlaneClient,
    record: VmRecord,
    flush: FlushRecord,
    signal: AbortSignal,
  ): Promise<void> {
    const segments = present(flush.segments, 'segments of a commit');
    // What is durable without the image that it is a delta of would be worth nothing.
    if (record.image !== undefined) {
      await this.#context.images.stored(record.image, record.image_version, signal);
    }
    const ask = () =>
      client.commit({
        instance_id: this.instance_id,
        vm_id: record.vm_id,
        epoch: record.epoch,
        generation: flush.generation,
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
      this.#unlessOvertaken(error, record.epoch, flush.generation),
    );
    this.#head = {
      ...this.head,
      generation: flush.generation,
      head_epoch: record.epoch,
      image_version: record.image_version,
      durable_at,
      layers: [...this.head.layers, ...segments],
    };
    for (const directory of directories) this.map.applySegment(directory);
    await this.vouch(record.epoch, false);
  }

  /** Refused, the commit was not another placement's if none came after this one: then the head is asked for anew. */
  async #unlessOvertaken(refusal: unknown, epoch: number, generation: number): Promise<never> {
    if (!(refusal instanceof FencedError)) throw refusal;
    const head = await this.refresh().catch((error: unknown) => {
      throw error instanceof InstanceGoneError ? refusal : error;
    });
    const ours = head.epoch === epoch && head.head_epoch === epoch;
    if (ours && head.generation >= generation) throw new OvertakenError(generation);
    throw refusal;
  }

  /**
   * Whether the head is what this flush has made. Not where a map has already taken the place of its segments: another one
   * of the same generation, asked for by an agent before, may be what it says, and not to know costs a comparison only.
   */
  hasCommitted(epoch: number, flush: FlushRecord): boolean {
    const { head } = this;
    const last = flush.segments?.at(-1);
    return (
      head.generation === flush.generation &&
      head.head_epoch === epoch &&
      last !== undefined &&
      head.layers.at(-1)?.key === last.key
    );
  }
}

function keyRingOf({ keys }: DiskHead): KeyRing {
  return new KeyRing(keys.map(({ key_id, key }) => ({ key_id, key: Buffer.from(key, 'base64') })));
}

/** Pure: see the head of this file. */
export function judgeSidecar(
  sidecar: OverlaySidecar,
  head: Pick<DiskHead, 'generation' | 'head_epoch'>,
  own_since: number,
): 'none' | 'clean' | 'unsaved' {
  const same = sidecar.generation === head.generation && sidecar.epoch === head.head_epoch;
  if (sidecar.clean) return same ? 'clean' : 'none';
  const own = head.head_epoch === sidecar.placement && head.generation > sidecar.generation;
  return (same || own) && sidecar.placement >= own_since ? 'unsaved' : 'none';
}

/** Pure: of no worth against any head to come either, for generations and epochs only rise. */
export function isOvertaken(
  sidecar: OverlaySidecar,
  head: Pick<DiskHead, 'generation' | 'head_epoch'>,
): boolean {
  return head.generation > sidecar.generation && head.head_epoch > sidecar.placement;
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
