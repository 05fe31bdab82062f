/** berth logs: the end of the guest's serial console, and what comes after it. */
import { setTimeout as pause } from 'node:timers/promises';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { newPart } from '../log-tail.ts';
import { whole } from '../numbers.ts';

const MAX_TAIL_KIB = 1024;
const TAIL_KIB = 64;
const FOLLOW_MS = 2_000;

async function logs({ args, options, session, terminal, signal }: Call): Promise<undefined> {
  const tail_kib = whole('tail', options.text('tail')) ?? TAIL_KIB;
  if (tail_kib < 1 || tail_kib > MAX_TAIL_KIB)
    throw new UsageError(`--tail takes 1 to ${MAX_TAIL_KIB}, not ${tail_kib}`);
  const follow = options.flag('follow');
  const timestamps = options.flag('timestamps') ? 'true' : undefined;
  const berth = session.berth();
  const { id, name, vm } = await berth.instances.find(args[0] ?? '');
  const read = (kib: number) =>
    berth.call('getConsoleLog', { path: { id }, query: { tail_kib: kib, timestamps } }, { signal });
  const print = (log: string) =>
    terminal.format === 'json' ? terminal.jsonLine({ log }) : terminal.guest(log);
  // To follow, read at least as much as the next read returns.
  let before = await read(follow ? Math.max(tail_kib, TAIL_KIB) : tail_kib);
  print(timestamps ? lastLines(before, tail_kib * 1024) : before.slice(-tail_kib * 1024));
  if (before === '' && terminal.format === 'human') {
    const [why, next] =
      vm.boot === 0 ? ['never ran', `\n  next: berth start ${name}`] : ['has printed nothing', ''];
    terminal.warn(`berth: ${name} ${why}, so its console log is empty${next}`);
  }
  if (follow && vm.boot === 0 && terminal.format === 'human')
    terminal.warn('berth: waiting for its first start; Ctrl-C ends');
  // A console may end inside a line, where the shell's prompt would continue.
  if (!follow && process.stdout.isTTY && before !== '' && !before.endsWith('\n')) terminal.say('');
  while (follow) {
    await pause(FOLLOW_MS, undefined, { signal }).catch(() => signal.throwIfAborted());
    const now = await read(TAIL_KIB);
    const more = newPart(before, now);
    if (more !== '') print(more);
    before = now;
  }
  return undefined;
}

/** At most so many characters, from the beginning of a line. */
function lastLines(text: string, characters: number): string {
  if (text.length <= characters) return text;
  return text.slice(text.indexOf('\n', text.length - characters) + 1);
}

export const LOGS: Command = {
  name: 'logs',
  args: ['NAME'],
  names_instances: true,
  summary: "print the end of the guest's console output",
  example: 'berth logs web -f --timestamps',
  options: {
    follow: { type: 'boolean', short: 'f', help: 'then print new output as it comes, until Ctrl-C' },
    timestamps: { type: 'boolean', short: 't', help: 'before each line the time at which it arrived, UTC' },
    tail: {
      type: 'string',
      value: 'KIB',
      field: 'tail_kib',
      help: `how many KiB of the end; at most ${MAX_TAIL_KIB}; default: ${TAIL_KIB}`,
    },
  },
  run: logs,
};
