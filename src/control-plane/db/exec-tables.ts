/** The table of execs. */
import type { Generated } from 'kysely';
import type { LostWith } from '../../protocol/exec-types.ts';
import type { ExecId, HostId, InstanceId } from '../../shared/ids.ts';

export const EXEC_STATES = ['running', 'exited', 'lost'] as const;
export type ExecState = (typeof EXEC_STATES)[number];

export interface ExecTables {
  execs: {
    id: ExecId;
    instance_id: InstanceId;
    host_id: HostId;
    command: readonly string[];
    tty: boolean;
    stdin: boolean;
    state: Generated<'starting' | ExecState>;
    exit_code: number | null;
    signal: number | null;
    timed_out: Generated<boolean>;
    lost_with: LostWith | null;
    output_bytes: Generated<number>;
    waits: Generated<boolean>;
    started_at: Generated<Date>;
    ended_at: Date | null;
  };
}
