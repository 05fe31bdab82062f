/** For the tests of this folder: temporary folders, child processes that end with their test, and waiting. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { isAlive } from '../../src/launcher/run-command.ts';

export const SRC = join(import.meta.dirname, '..', '..', 'src');
export const AS_ROOT = process.getuid?.() === 0 ? {} : { skip: 'needs root' };

const cleanups = new WeakMap<TestContext, (() => unknown)[]>();

/** Like `t.after`, but the last one asked for runs first: a folder goes after what runs in it. */
export function cleanUp(t: TestContext, work: () => unknown): void {
  const known = cleanups.get(t);
  if (known !== undefined) {
    known.push(work);
    return;
  }
  const stack = [work];
  cleanups.set(t, stack);
  t.after(async () => {
    const failures: unknown[] = [];
    for (const next of stack.toReversed()) {
      try {
        await next();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw new AggregateError(failures, 'cleaning up failed');
  });
}

/** A folder of mode 0700, as mkdtemp makes them: nobody else gets in. */
export async function temporaryFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-'));
  cleanUp(t, () => rm(folder, { recursive: true, force: true, maxRetries: 5 }));
  return folder;
}

export function kill(pid: number | undefined): void {
  if (pid !== undefined && isAlive(pid)) process.kill(pid, 'SIGKILL');
}

export interface Script {
  readonly child: ChildProcess;
  readonly pid: number;
  /** What it has written so far. */
  output(): string;
  readonly ended: Promise<{ code: number | null; signal: NodeJS.Signals | null; output: string }>;
}

/** node's arguments that run this TypeScript; `SRC` in it is the source folder. */
export function scriptArgs(code: string): string[] {
  return ['--input-type=module-typescript', '-e', code.replaceAll('SRC', SRC)];
}

export function runScript(t: TestContext, code: string): Script {
  const child = spawn(process.execPath, scriptArgs(code), { stdio: ['ignore', 'pipe', 'pipe'] });
  cleanUp(t, () => kill(child.pid));
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  }
  const ended = new Promise<Awaited<Script['ended']>>((resolve) => {
    child.once('close', (code, signal) => resolve({ code, signal, output }));
  });
  assert(child.pid !== undefined);
  return { child, pid: child.pid, output: () => output, ended };
}
