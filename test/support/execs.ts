/** Execs, inserted into the database directly. */
import type { Db } from '../../src/control-plane/db/pool.ts';
import { type ExecId, type HostId, type InstanceId, newId } from '../../src/shared/ids.ts';

export async function makeExec(
  db: Db,
  { instance_id, host_id }: { readonly instance_id: InstanceId; readonly host_id: HostId },
  state: 'running' | 'exited' = 'exited',
): Promise<ExecId> {
  const id = newId('exec');
  const ended = state === 'exited' ? { exit_code: 0, ended_at: new Date() } : {};
  const exec = { id, instance_id, host_id, command: ['true'], tty: true, stdin: true, state, ...ended };
  await db.insertInto('execs').values(exec).execute();
  return id;
}
