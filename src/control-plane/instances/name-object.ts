/** What an object of the store is, by its key. One object has one key: numbers have no leading zeroes. */
import type { InstanceId } from '../../shared/ids.ts';

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
export function objectNamed(key: string): NamedObject | null {
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
