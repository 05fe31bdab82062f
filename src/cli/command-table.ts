/** Every command, in the order of the help. */
import type { Command } from './command.ts';
import { COMPLETION } from './commands/completion.ts';
import { CONSOLE } from './commands/console-command.ts';
import { DATA_COMMANDS } from './commands/data-commands.ts';
import { DOCTOR } from './commands/doctor.ts';
import { GENERATION_COMMANDS } from './commands/generation-commands.ts';
import { GUEST_COMMANDS } from './commands/guest-commands.ts';
import { IMAGE_COMMANDS, IMAGE_SERVER_COMMANDS } from './commands/image-commands.ts';
import { INSTANCE_COMMANDS } from './commands/instance-commands.ts';
import { KEY_COMMANDS } from './commands/key-commands.ts';
import { LOGIN_COMMANDS } from './commands/login-commands.ts';
import { LOGS } from './commands/logs-command.ts';
import { METRICS } from './commands/metrics-command.ts';
import { SERVER_COMMANDS } from './commands/server-commands.ts';
import { SSH_COMMANDS } from './commands/ssh-commands.ts';
import { UP } from './commands/up-command.ts';
import { VM_COMMANDS } from './commands/vm-commands.ts';
import { WATCH_COMMANDS } from './commands/watch-commands.ts';
import { WEBHOOK_COMMANDS } from './commands/webhook-commands.ts';

export interface Section {
  readonly title: string;
  readonly commands: readonly Command[];
}

export const SECTIONS: readonly Section[] = [
  { title: 'Instances', commands: [...INSTANCE_COMMANDS, ...IMAGE_COMMANDS] },
  { title: 'VMs', commands: VM_COMMANDS },
  { title: 'Generations', commands: GENERATION_COMMANDS },
  { title: 'SSH', commands: [UP, ...SSH_COMMANDS] },
  { title: 'Guests', commands: [...GUEST_COMMANDS, LOGS, METRICS, CONSOLE] },
  { title: 'Keys', commands: KEY_COMMANDS },
  { title: 'Login', commands: LOGIN_COMMANDS },
  { title: 'Webhooks', commands: WEBHOOK_COMMANDS },
  { title: 'What happens', commands: WATCH_COMMANDS },
  { title: 'This tool', commands: [DOCTOR, COMPLETION] },
  {
    title: 'On the server, with the settings of npm start',
    commands: [...SERVER_COMMANDS, ...DATA_COMMANDS, ...IMAGE_SERVER_COMMANDS],
  },
];

export const COMMANDS: readonly Command[] = SECTIONS.flatMap(({ commands }) => commands);

/** All names of commands, longest first. */
const NAMED: readonly { readonly words: readonly string[]; readonly command: Command }[] = COMMANDS.flatMap(
  (command) => [command.name, ...(command.short ?? [])].map((name) => ({ words: name.split(' '), command })),
).sort((a, b) => b.words.length - a.words.length);

export interface Found {
  readonly command: Command;
  /** The number of words that name it. */
  readonly taken: number;
}

/** The command that the words start with. */
export function findCommand(words: readonly string[]): Found | undefined {
  const found = NAMED.find(({ words: name }) => name.every((word, at) => words[at] === word));
  return found && { command: found.command, taken: found.words.length };
}
