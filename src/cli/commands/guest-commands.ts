/** `berth exec --json`: a command whose whole result is printed at its end, by `POST …/vm/exec`. */
import type { Answer } from '../../../client/src/berth.ts';
import { durationText } from '../../../client/src/words.ts';
import type { Call } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { durationOption } from '../duration.ts';
import { EXIT } from '../exit-codes.ts';
import { fetchWithoutTimeout } from '../fetch-without-timeout.ts';

/** The API's limit. */
const MAX_TIMEOUT_SECONDS = 600;
const TIMEOUT_SECONDS = 60;
const OUTPUT = '1 MiB';

function timeoutOf({ options }: Call): number {
  const seconds = durationOption('timeout', options.text('timeout')) ?? TIMEOUT_SECONDS;
  if (seconds >= 1 && seconds <= MAX_TIMEOUT_SECONDS) return seconds;
  throw new UsageError(
    `--timeout takes 1s to ${durationText(MAX_TIMEOUT_SECONDS)}, not ${durationText(seconds)}`,
  );
}

export async function execAsJson(call: Call): Promise<number> {
  const { args, rest, options, session, terminal, signal } = call;
  const timeout_seconds = timeoutOf(call);
  const berth = session.berth({ fetch: await fetchWithoutTimeout() });
  const { id, name } = await berth.instances.find(args[0] ?? '');
  const reads = process.stdin.isTTY !== true && !options.flag('no-stdin');
  const stdin = reads ? await terminal.stdin() : '';
  const body = { command: [...rest], stdin, timeout_seconds };
  const progress = terminal.progress(`running on ${name}; the output appears at the end`);
  const result = await berth
    .call('execInVm', { path: { id }, body }, { signal })
    .finally(() => progress.end());
  terminal.json(result);
  return endOf(call, result, name, timeout_seconds);
}

/** Tells why the result is not the command's whole. @returns the exit code */
function endOf(
  { terminal }: Call,
  { exit_code, truncated }: Answer<'execInVm'>,
  name: string,
  timeout_seconds: number,
): number {
  if (exit_code === null) {
    const after = durationText(timeout_seconds);
    terminal.warn(`berth: the command on ${name} was killed after ${after}: it had not ended`);
  }
  if (truncated) {
    const own = exit_code === null ? '' : `; the command itself ended with exit code ${exit_code}`;
    terminal.warn(
      `berth: the output was cut at ${OUTPUT}${own}\n  next: the same without --json, which has no limit`,
    );
  }
  if (exit_code === null) return EXIT.timed_out;
  return truncated && exit_code === 0 ? EXIT.cut : exit_code;
}
