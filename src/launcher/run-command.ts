/** Runs a program to its end, and returns its exit code and output (`runCommand`). */
import { type SpawnOptions, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { errnoOf } from '../shared/errors.ts';

export interface CommandOptions {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  /** With `gid`: the process has no supplementary groups (libuv empties them). */
  readonly uid?: number | undefined;
  readonly gid?: number | undefined;
  /** `passed on`: its output goes to ours. */
  readonly output?: 'collected' | 'passed on';
  /** Sends SIGTERM; the call then rejects. */
  readonly signal?: AbortSignal | undefined;
  /** For each line of stdout; both streams are collected too. */
  readonly onLine?: (line: string) => void;
}

export interface CommandResult {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

const OUTPUT_MAX_CHARACTERS = 1_000_000;

/** Resolves however the program ends; rejects only when it cannot be run. */
export function runCommand(
  command: string,
  args: readonly string[],
  options: CommandOptions = {},
): Promise<CommandResult> {
  const passed_on = options.output === 'passed on';
  const spawn_options: SpawnOptions = {
    stdio: passed_on ? ['ignore', 'inherit', 'inherit'] : ['ignore', 'pipe', 'pipe'],
    ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
    ...(options.env === undefined ? {} : { env: options.env }),
    ...(options.uid === undefined ? {} : { uid: options.uid }),
    ...(options.gid === undefined ? {} : { gid: options.gid }),
    ...(options.signal === undefined ? {} : { signal: options.signal }),
  };
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, spawn_options);
    const collected = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const) {
      child[name]?.setEncoding('utf8').on('data', (text: string) => {
        if (collected[name].length < OUTPUT_MAX_CHARACTERS) collected[name] += text;
      });
    }
    if (options.onLine && child.stdout) createInterface(child.stdout).on('line', options.onLine);
    child.once('error', reject);
    child.once('close', (code, signal) => resolve({ code, signal, ...collected }));
  });
}

/** The last non-empty lines of a text, joined into one. */
export function lastLines(text: string, count = 3): string {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '')
    .slice(-count)
    .join(' | ');
}

/** Whether a process that is not our child lives. False for a zombie: in a container nothing may ever reap it. */
export function isAlive(pid: number): boolean {
  try {
    // The state follows the program's name, which is in parentheses and may contain any character.
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return !/^ [ZX]/.test(stat.slice(stat.lastIndexOf(')') + 1));
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes(errnoOf(error) ?? '')) return false;
    throw error;
  }
}
