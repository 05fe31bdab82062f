/**
 * Starts a Node program for a test or a benchmark, and reads the lines that it prints: one at its start, and then one
 * for each line that it gets.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';

export interface LineProgram {
  /** What it printed first. */
  readonly first: string;
  /** What it prints now. */
  ask(): Promise<string>;
  end(): void;
}

/** It ends with its stdin. @throws when it ends before */
export async function startLineProgram(args: readonly string[]): Promise<LineProgram> {
  const program = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = once(program, 'exit').then(([code]) => Promise.reject(new Error(`it ended with ${code}`)));
  ended.catch(() => undefined);
  const line = async () => {
    const [data] = await Promise.race([once(program.stdout, 'data'), ended]);
    return String(data).trim();
  };
  return {
    first: await line(),
    ask: () => {
      program.stdin.write('\n');
      return line();
    },
    end: () => program.stdin.end(),
  };
}

/** Of the proxy's program: in MiB. */
export interface ProxyMemory {
  readonly resident: number;
  /** On the JavaScript heap after a collection. */
  readonly live: number;
}

/** The proxy of HTTP ports in front of the addresses of three guests, or of one. */
export async function startProxy(
  ...addresses: string[]
): Promise<{ port: string; memory: () => Promise<ProxyMemory>; end: () => void }> {
  const program = `${import.meta.dirname}/http-proxy-program.ts`;
  const { first, ask, end } = await startLineProgram(['--expose-gc', program, ...addresses]);
  const memory = async () => {
    const [resident = Number.NaN, live = Number.NaN] = (await ask()).split(' ').map(Number);
    return { resident, live };
  };
  return { port: first, memory, end };
}
