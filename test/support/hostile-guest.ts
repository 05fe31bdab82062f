/** Makes a guest attack its host as root: it replaces the guest agent, floods the console, or uses up its CPU. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const AGENT = readFileSync(join(import.meta.dirname, 'hostile-agent.pl'));

export const HOSTILE_MODES = ['endless', 'lists', 'nested', 'words', 'flood', 'bytes', 'order'] as const;
export type HostileMode = (typeof HOSTILE_MODES)[number];

const agent = '/usr/lib/berth/guest-agent';
const flood = '/run/flood';

/** Runs commands as root in the guest. */
export interface RootShell {
  sh(command: string, input?: Uint8Array): Promise<string>;
}

/** Replaces the guest agent with a scripted one, which behaves well until {@link behave} sets another mode. */
export async function turnHostile(guest: RootShell): Promise<void> {
  await guest.sh(`cat > ${agent}.new && chmod 755 ${agent}.new && cp ${agent} ${agent}.real`, AGENT);
  await guest.sh(`echo good > /run/mode; mv ${agent}.new ${agent}; sync`);
}

/** Restarts the guest agent in a mode. */
export async function behave(guest: RootShell, mode: HostileMode | 'good'): Promise<void> {
  await guest.sh(`echo ${mode} > /run/mode; pkill qemu-ga; pkill -f '^/usr/bin/perl ${agent}'; true`);
}

/** Prints terminal control sequences to the console without pause, until {@link endFlood}. */
export async function floodConsole(guest: RootShell): Promise<void> {
  const print = 'while :; do printf "\x1b]0;owned\x07\x1b[2J\x1b[31mroot# "; done';
  await guest.sh(`echo '${print}' > ${flood}; setsid sh ${flood} < /dev/null > /dev/ttyS0 2>&1 &`);
}

export async function endFlood(guest: RootShell): Promise<void> {
  await guest.sh(`pkill -KILL -f '^sh ${flood}'; true`);
}

/** Uses one CPU of the guest fully, until {@link endWork}. */
export async function workHard(guest: RootShell): Promise<void> {
  await guest.sh(
    "echo 'while :; do :; done' > /run/work; setsid sh /run/work < /dev/null > /dev/null 2>&1 &",
  );
}

export async function endWork(guest: RootShell): Promise<void> {
  await guest.sh("pkill -KILL -f '^sh /run/work'; true");
}
