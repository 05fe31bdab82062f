import { rfc3339 } from '../../shared/clock.ts';
import { signalName } from '../../shared/signal-names.ts';
import type { ExecState } from '../db/exec-tables.ts';
import type { ExecRow } from './store.ts';

export function execView(row: ExecRow) {
  return {
    id: row.id,
    instance_id: row.instance_id,
    command: [...row.command],
    state: (row.state === 'starting' ? 'running' : row.state) as ExecState,
    exit_code: row.exit_code,
    signal: row.signal === null ? null : signalName(row.signal),
    timed_out: row.timed_out,
    lost_with: row.lost_with,
    started_at: rfc3339(row.started_at),
    ended_at: row.ended_at && rfc3339(row.ended_at),
    output_bytes: row.output_bytes,
  };
}
