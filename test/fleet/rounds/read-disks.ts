/**
 * Reads what the database and the store hold in the end: rows by psql, and the head of each disk by the independent reader of the
 * disk format. Only the disks' keys are opened by the program's own code.
 */
import { GetObjectCommand, S3Client } from '@aws-sdk/client-s3';
import { openPool } from '../../../src/control-plane/db/pool.ts';
import { diskKeys, openDataKeys } from '../../../src/control-plane/disks/data-keys.ts';
import { findRootKey } from '../../../src/control-plane/fleet/root-key.ts';
import type { InstanceId } from '../../../src/shared/ids.ts';
import { IndependentReader } from '../../support/independent-reader.ts';
import type { Fleet } from './fleet.ts';
import { newestIn } from './guest-program.ts';
import type { Event, ReportedLoss } from './history.ts';

interface Layer {
  readonly generation: number;
  readonly parent: number | null;
  readonly segments: readonly { readonly key: string }[];
  readonly map: { readonly key: string; readonly full?: boolean } | null;
}

/** Rows of all VMs and generations. */
export function readRows({ cluster }: Fleet): Event[] {
  const vms = cluster.query(
    'select v.instance_id, v.boot, v.epoch, h.name from vms v join hosts h on h.id = v.host_id',
  );
  const generations = cluster.query(
    'select instance_id, generation, coalesce(parent, 0), epoch from generations',
  );
  return [
    ...vms.map(
      ([instance = '', boot, epoch, host = '']): Event => ({
        kind: 'vm',
        instance,
        boot: Number(boot),
        epoch: Number(epoch),
        host,
      }),
    ),
    ...generations.map(
      ([instance = '', generation, parent, epoch]): Event => ({
        ...{ kind: 'generation', instance, generation: Number(generation) },
        ...{ parent: Number(parent) || null, epoch: Number(epoch) },
      }),
    ),
  ];
}

/** The losses that events report. */
export function readLosses({ cluster }: Fleet): ReportedLoss[] {
  const rows = cluster.query(
    `select id, instance_id, floor(extract(epoch from created_at) * 1000) from events where type = 'vm.recovered'
       or (type = 'vm.failed' and data #>> '{instance,vm,reason,code}' in ('recovered', 'cold_boot'))`,
  );
  return rows.map(([id = '', instance = '', at_ms]) => ({
    kind: 'loss',
    at_ms: Number(at_ms),
    id,
    instance,
  }));
}

/** The head of each disk that has one. */
export async function readHeads(fleet: Fleet): Promise<Event[]> {
  const db = openPool(fleet.cluster.url, () => undefined);
  const store = openStore(fleet.bucket);
  try {
    const root_key = await findRootKey(db, fleet.secret_key);
    if (!root_key) throw new Error('the secret key of the fleet opens no root key');
    const keys = diskKeys(root_key, true);
    const heads: Event[] = [];
    for (const [instance = '', head] of fleet.cluster.query(
      'select d.instance_id, d.generation from disks d join instances i on i.id = d.instance_id where not i.deleting and d.generation > 0',
    )) {
      const at_ms = Date.now();
      const objects = new Map<string, Buffer>();
      const opened = await openDataKeys(db, keys, instance as InstanceId);
      const reader = new IndependentReader((key) => objects.get(key) ?? Buffer.alloc(0), opened?.keys ?? []);
      const layers = layersOf(fleet, instance, Number(head));
      for (const key of layers) objects.set(key, await store.get(key));
      // A map names segments of its own.
      for (const key of layers) reader.apply(key);
      for (const key of reader.objects()) if (!objects.has(key)) objects.set(key, await store.get(key));
      const newest = Math.max(0, ...Array.from(reader.changed(), newestIn));
      heads.push({ kind: 'head', at_ms, instance, generation: Number(head), newest });
    }
    return heads;
  } finally {
    store.close();
    await db.destroy();
  }
}

/** The keys of the objects that make up a generation, oldest first. */
function layersOf({ cluster }: Fleet, instance: string, head: number): string[] {
  const [[text = '[]'] = []] = cluster.query(
    `select json_agg(json_build_object('generation', generation, 'parent', parent, 'segments', segments, 'map', map)) from generations where instance_id = '${instance}'`,
  );
  const rows = new Map((JSON.parse(text) as Layer[]).map((row) => [row.generation, row]));
  const keys: string[] = [];
  for (let row = rows.get(head); row; row = row.map?.full === true ? undefined : rows.get(row.parent ?? -1))
    keys.unshift(...(row.map ? [row.map.key] : row.segments.map(({ key }) => key)));
  return keys;
}

function openStore(settings: Readonly<Record<string, string>>) {
  const of = (name: string) => settings[name] ?? '';
  const client = new S3Client({
    ...{ endpoint: of('BERTH_S3_ENDPOINT'), region: 'us-east-1', forcePathStyle: true },
    credentials: { accessKeyId: of('AWS_ACCESS_KEY_ID'), secretAccessKey: of('AWS_SECRET_ACCESS_KEY') },
  });
  return {
    get: async (Key: string) => {
      const { Body } = await client.send(new GetObjectCommand({ Bucket: of('BERTH_S3_BUCKET'), Key }));
      return Buffer.from((await Body?.transformToByteArray()) ?? []);
    },
    close: () => client.destroy(),
  };
}
