/** Root of a guest that turns against its host: another agent in the place of its own, and a console that never ends. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { GuestInstance } from './guest-instance.ts';

const AGENT = readFileSync(join(import.meta.dirname, 'hostile-agent.pl'));

export const HOSTILE_MODES = ['endless', 'lists', 'nested', 'words', 'flood', 'bytes', 'order'] as const;
export type HostileMode = (typeof HOSTILE_MODES)[number];

const agent = '/usr/lib/berth/guest-agent';

/** From now on its agent is ours, which is as good as the one before until it is told another way. */
export async function turnHostile(guest: GuestInstance): Promise<void> {
  await guest.sh(`cat > ${agent}.new && chmod 755 ${agent}.new && cp ${agent} ${agent}.real`, AGENT);
  await guest.sh(`echo good > /run/mode; mv ${agent}.new ${agent}; sync`);
}

/** Its agent begins anew, in this way. */
export async function behave(guest: GuestInstance, mode: HostileMode | 'good'): Promise<void> {
  await guest.sh(`echo ${mode} > /run/mode; pkill qemu-ga; pkill -f ${agent}; true`);
}

/** Prints what a terminal would act on, without end, until the guest ends. */
export async function floodConsole(guest: GuestInstance): Promise<void> {
  const print = 'while :; do printf "\\033]0;owned\\007\\033[2J\\033[31mroot# "; done > /dev/ttyS0';
  await guest.sh(`setsid sh -c '${print}' < /dev/null > /dev/null 2>&1 &`);
}
