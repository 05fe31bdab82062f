/** Runs a program of the system with an input, and returns its output. */
import { spawn } from 'node:child_process';
import { errnoOf } from '../../shared/errors.ts';
import { CLEAN_ENV } from '../qemu/confinement.ts';

const TOOL_MS = 10_000;
const OUTPUT_MAX_CHARS = 1_000_000;

/** Its output. @throws with the first line that it wrote to stderr */
export function runTool(file: string, args: readonly string[], input = ''): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const child = spawn(file, args, {
    stdio: 'pipe',
    env: CLEAN_ENV,
    cwd: '/',
    timeout: TOOL_MS,
    killSignal: 'SIGKILL',
  });
  let [output, errors] = ['', ''];
  child.stdout.on('data', (chunk: Buffer) => {
    output = (output + chunk.toString('utf8')).slice(0, OUTPUT_MAX_CHARS);
  });
  child.stderr.on('data', (chunk: Buffer) => {
    errors = (errors + chunk.toString('utf8')).slice(0, 2_000);
  });
  child.once('error', (error) =>
    reject(errnoOf(error) === 'ENOENT' ? new Error(`${file} is not installed`) : error),
  );
  child.once('close', (status, signal) => {
    if (status === 0) return resolve(output);
    const said = errors.trim().split('\n')[0];
    reject(new Error(`${file} ended with ${signal ?? `status ${status}`}${said ? `: ${said}` : ''}`));
  });
  child.stdin.on('error', () => undefined);
  child.stdin.end(input);
  return promise;
}
