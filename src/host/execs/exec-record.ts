/** What this host knows of an exec, in `<exec id>.json` beside its output. It is written at the start and at the end. */
import { readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ExecEnd } from '../../protocol/exec-types.ts';
import { type ExecId, isId } from '../../shared/ids.ts';

export interface ExecRecord {
  readonly id: ExecId;
  /** The supervisor that runs it; null: none has said so yet. */
  readonly session: string | null;
  /** Null: it runs, as far as is known. */
  readonly end: ExecEnd | null;
  readonly output_bytes: number;
  /** Its input came over a stream, and ends a while after that was lost. */
  readonly streamed_input: boolean;
  /** The control plane knows the end. */
  readonly reported: boolean;
}

/** Not durable: a power loss ends the boot too. */
export function writeExecRecord(folder: string, record: ExecRecord): void {
  const path = join(folder, `${record.id}.json`);
  writeFileSync(`${path}.new`, JSON.stringify(record), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function removeExecRecord(folder: string, id: ExecId): void {
  rmSync(join(folder, `${id}.json`), { force: true });
}

/** Oldest first. A damaged one is left out. */
export function readExecRecords(folder: string): ExecRecord[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith('.json') && isId('exec', name.slice(0, -5)))
    .sort()
    .flatMap((name) => {
      try {
        return [JSON.parse(readFileSync(join(folder, name), 'utf8')) as ExecRecord];
      } catch {
        return [];
      }
    });
}
