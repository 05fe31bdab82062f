import type { Generated } from 'kysely';
import type { InstanceId } from '../../shared/ids.ts';

/** Who reads objects, and who writes some that no row names yet. */
export interface ReaderTables {
  object_readers: { id: string; until: Date };
  object_writers: { id: string; instance_id: InstanceId; since: Generated<Date> };
}
