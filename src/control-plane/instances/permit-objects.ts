/**
 * Decides which objects of the store a host may write and read now, from the objects' keys and the database alone.
 * Nothing that the host claims counts. "VM" below is the newest VM of an instance, while it may write on this host.
 *
 * A host may write, up to the largest size that Berth writes:
 * - segments of the generation that the VM would commit next, and parts of the VM's memory
 * - the object that says who consumed the memory that the VM resumes from
 * - pieces of images that the host's disks need
 * A host may read those, and also:
 * - segments and maps that the VM's instance holds, and the memory that the VM resumes from
 * - the mark of the store (object-store/store-mark.ts)
 */

import { createHash } from 'node:crypto';
import type { ObjectRequest } from '../../protocol/types.ts';
import type { HostId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { heldHere, memoryOf, type WritablePlacement, writableHere } from '../disks/segment-store.ts';
import { diskNeeds } from '../images/store.ts';

/** What an object of the store is, by its key. One object has one key: numbers have no leading zeroes. */
export type NamedObject =
  | {
      readonly kind: 'segment';
      readonly key: string;
      readonly instance_id: InstanceId;
      readonly epoch: number;
      readonly generation: number;
    }
  | { readonly kind: 'map'; readonly key: string; readonly instance_id: InstanceId }
  | {
      readonly kind: 'memory';
      /** The key without the part. */
      readonly memory: string;
      readonly instance_id: InstanceId;
      readonly epoch: number;
    }
  /** Who consumed the memory: see disk-format/memory-format.ts. */
  | { readonly kind: 'consumed'; readonly memory: string; readonly instance_id: InstanceId }
  | { readonly kind: 'image'; readonly image: string; readonly id: string; readonly version: string }
  | { readonly kind: 'mark' };

const DISK = 'disks/(inst_[0-9a-hjkmnp-tv-z]{26})';
const NUMBER = '(0|[1-9][0-9]{0,14})';
const ATTEMPT = '[0-9a-f]{8}';
const SEGMENT = new RegExp(`^${DISK}/seg/${NUMBER}/${NUMBER}-${ATTEMPT}-${NUMBER}$`);
const MAP = new RegExp(`^${DISK}/map/${NUMBER}-${ATTEMPT}$`);
const MEMORY = new RegExp(`^(${DISK}/mem/${NUMBER}-${ATTEMPT})/${NUMBER}$`);
const CONSUMED = new RegExp(`^(${DISK}/mem/${NUMBER}-${ATTEMPT})/consumed$`);
const IMAGE =
  /^images\/(([a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?)\/([0-9a-f]{64}))\/(?:[0-9a-f]{64}|index\.json)$/;
/** See object-store/store-mark.ts. */
const MARK = 'berth-store';

/** Null: nothing that a host uses. */
function objectNamed(key: string): NamedObject | null {
  if (key === MARK) return { kind: 'mark' };
  const segment = SEGMENT.exec(key);
  if (segment) {
    const [, id, epoch, generation] = segment;
    const instance_id = id as InstanceId;
    return { kind: 'segment', key, instance_id, epoch: Number(epoch), generation: Number(generation) };
  }
  const map = MAP.exec(key);
  if (map) return { kind: 'map', key, instance_id: map[1] as InstanceId };
  const [, memory, instance_id, epoch] = MEMORY.exec(key) ?? [];
  if (memory !== undefined)
    return { kind: 'memory', memory, instance_id: instance_id as InstanceId, epoch: Number(epoch) };
  const [, consumed, consumed_of] = CONSUMED.exec(key) ?? [];
  if (consumed !== undefined)
    return { kind: 'consumed', memory: consumed, instance_id: consumed_of as InstanceId };
  const [, image, id, version] = IMAGE.exec(key) ?? [];
  if (image === undefined || id === undefined || version === undefined) return null;
  return { kind: 'image', image, id, version };
}

const MIB = 2 ** 20;
const OF_NOTHING = createHash('sha256').digest('hex');
/** A segment has 16 MiB of frames and a tail, a part of memory 8 MiB and a header; the index of an image of 1 TiB 24 MiB. */
const WRITTEN_MAX_BYTES = {
  segment: 18 * MIB,
  memory: 9 * MIB,
  consumed: 256,
  image: 24 * MIB,
  map: 0,
  mark: 0,
} as const;

type Placements = ReadonlyMap<InstanceId, WritablePlacement>;

interface Known {
  readonly placements: Placements;
  readonly held: ReadonlySet<string>;
  readonly memory: ReadonlySet<string>;
  /** Images that disks of the host need, as `<id>/<version>`. */
  readonly images: ReadonlySet<string>;
}

/** For each request, whether it is permitted. */
export async function permitObjects(
  tx: Tx,
  host_id: HostId,
  requests: readonly ObjectRequest[],
): Promise<boolean[]> {
  const named = requests.map(({ key }) => objectNamed(key));
  const placements = await writableHere(tx, host_id, instancesOf(named));
  const reads = requests.flatMap(({ method }, i) => (method === 'PUT' ? [] : (named[i] ?? [])));
  const known = {
    placements,
    held: await heldHere(tx, host_id, heldKeys(reads, placements)),
    memory: await memoryOf(tx, resumed(named, placements)),
    images: await imagesNeeded(tx, host_id, named),
  };
  return requests.map((request, i) => {
    const object = named[i] ?? null;
    if (object === null) return false;
    if (request.method !== 'PUT') return mayRead(object, known);
    const has_bytes = request.size_bytes > 0 && request.sha256 !== OF_NOTHING;
    return has_bytes && request.size_bytes <= WRITTEN_MAX_BYTES[object.kind] && mayWrite(object, known);
  });
}

function mayWrite(object: NamedObject, { placements, memory, images }: Known): boolean {
  switch (object.kind) {
    case 'segment':
    case 'memory':
      return isNext(object, placements);
    case 'consumed':
      return memory.has(object.memory);
    case 'image':
      return images.has(object.image);
    case 'map':
    case 'mark':
      return false;
  }
}

function mayRead(object: NamedObject, known: Known): boolean {
  switch (object.kind) {
    case 'segment':
      return known.held.has(object.key) || isNext(object, known.placements);
    case 'map':
      return known.held.has(object.key);
    case 'memory':
      return known.memory.has(object.memory) || isNext(object, known.placements);
    case 'consumed':
      return known.memory.has(object.memory);
    case 'image':
      return known.images.has(object.image);
    case 'mark':
      return true;
  }
}

/** Whether the newest VM there writes it, and has not committed it yet. */
function isNext(object: Extract<NamedObject, { epoch: number }>, placements: Placements): boolean {
  const placement = placements.get(object.instance_id);
  if (!placement || object.epoch !== placement.epoch) return false;
  return object.kind === 'memory' || object.generation === placement.generation + 1;
}

function instancesOf(named: readonly (NamedObject | null)[]): InstanceId[] {
  return [
    ...new Set(named.flatMap((object) => (object && 'instance_id' in object ? object.instance_id : []))),
  ];
}

/** What the host cannot read because it writes it. */
function heldKeys(reads: readonly NamedObject[], placements: Placements): string[] {
  return reads.flatMap((object) => {
    if (object.kind === 'map') return object.key;
    return object.kind === 'segment' && !isNext(object, placements) ? object.key : [];
  });
}

function resumed(named: readonly (NamedObject | null)[], placements: Placements) {
  return named.flatMap((object) => {
    if (object?.kind !== 'memory' && object?.kind !== 'consumed') return [];
    const placement = placements.get(object.instance_id);
    return placement ? { key: object.memory, vm_id: placement.vm_id } : [];
  });
}

async function imagesNeeded(
  tx: Tx,
  host_id: HostId,
  named: readonly (NamedObject | null)[],
): Promise<ReadonlySet<string>> {
  const images = new Set<string>();
  const asked = new Map(
    named.flatMap((each) => (each?.kind === 'image' ? [[each.image, each] as const] : [])),
  );
  for (const { image, id, version } of asked.values()) {
    if (await diskNeeds(tx, host_id, id, version)) images.add(image);
  }
  return images;
}
