/**
 * Lists every command in the order of the help, and finds the command that a user typed, by its name, a short name or a
 * synonym (`findCommand`).
 */
import type { Command } from './command.ts';
import { ACCOUNT_COMMANDS } from './commands/account.ts';
import { COPY } from './commands/copy.ts';
import { DOCTOR } from './commands/doctor.ts';
import { EVENT_COMMANDS } from './commands/events.ts';
import { EXEC_COMMANDS } from './commands/exec.ts';
import { GENERATION_COMMANDS } from './commands/generations.ts';
import { INSTANCE_COMMANDS } from './commands/instances.ts';
import { COMPLETION, MCP } from './commands/integrations.ts';
import { KEY_COMMANDS } from './commands/keys.ts';
import { LOGIN_COMMANDS } from './commands/login.ts';
import { NOTIFICATION_COMMANDS } from './commands/notifications.ts';
import { OPERATOR_COMMANDS } from './commands/operator.ts';
import { ORGANISATION_COMMANDS } from './commands/organisation.ts';
import { PORT_COMMANDS } from './commands/ports.ts';
import { SECRET_COMMANDS } from './commands/secrets.ts';
import { SERVER_COMMANDS } from './commands/server.ts';
import { DATA_COMMANDS } from './commands/server-data.ts';
import { SSH_COMMANDS } from './commands/ssh.ts';
import { METRICS_COMMAND, TOP, USAGE } from './commands/usage.ts';
import { CONSOLE, LOGS, VM_COMMANDS } from './commands/vms.ts';
import { WEBHOOK_COMMANDS } from './commands/webhooks.ts';

export interface Section {
  readonly title: string;
  readonly commands: readonly Command[];
}

export const SECTIONS: readonly Section[] = [
  { title: 'Instances', commands: INSTANCE_COMMANDS },
  { title: 'VMs', commands: VM_COMMANDS },
  { title: 'Generations', commands: GENERATION_COMMANDS },
  { title: 'SSH', commands: SSH_COMMANDS },
  { title: 'HTTP ports', commands: PORT_COMMANDS },
  { title: 'Secrets', commands: SECRET_COMMANDS },
  { title: 'Guests', commands: [...EXEC_COMMANDS, COPY, LOGS, METRICS_COMMAND, TOP, USAGE, CONSOLE, MCP] },
  { title: 'Keys', commands: KEY_COMMANDS },
  { title: 'Login', commands: LOGIN_COMMANDS },
  { title: 'Account', commands: ACCOUNT_COMMANDS },
  { title: 'Organisation', commands: ORGANISATION_COMMANDS },
  { title: 'Notifications', commands: NOTIFICATION_COMMANDS },
  { title: 'Webhooks', commands: WEBHOOK_COMMANDS },
  { title: 'Events and audit', commands: EVENT_COMMANDS },
  { title: 'Diagnostics', commands: [DOCTOR, ...OPERATOR_COMMANDS, COMPLETION] },
  {
    title: 'On the server',
    commands: [...SERVER_COMMANDS, ...DATA_COMMANDS].map((command) => ({ ...command, on_server: true })),
  },
];

export const COMMANDS: readonly Command[] = SECTIONS.flatMap(({ commands }) => commands);

/** Words that people know from other tools, for the verb of any command: `berth list`, `berth webhook delete`. */
const SYNONYMS: Readonly<Record<string, string>> = {
  list: 'ls',
  status: 'show',
  delete: 'rm',
  destroy: 'rm',
  remove: 'rm',
  reboot: 'restart',
  resize: 'set',
  snapshot: 'flush',
};

/** Words of other tools for commands that Berth names otherwise: suggested, not accepted. */
export const OTHER_WORDS: ReadonlyMap<string, string> = new Map(
  Object.entries({
    clone: 'fork',
    info: 'show',
    inspect: 'show',
    invite: 'invitation create',
    key: 'ssh-key or api-key',
    keys: 'ssh-key ls or api-key ls',
    new: 'create',
    pause: 'suspend',
    ps: 'ls',
    resume: 'start',
    run: 'exec',
    shell: 'ssh',
    shutdown: 'stop',
    token: 'api-key',
    unpause: 'start',
  }),
);

/** All names of commands, longest first. */
const NAMED: readonly { readonly words: readonly string[]; readonly command: Command }[] = COMMANDS.flatMap(
  (command) => [command.name, ...(command.short ?? [])].map((name) => ({ words: name.split(' '), command })),
).sort((a, b) => b.words.length - a.words.length);

export interface Found {
  readonly command: Command;
  /** The number of words that name it. */
  readonly taken: number;
}

/** The command that the words start with, by a name or a synonym. */
export function findCommand(words: readonly string[]): Found | undefined {
  return findNamed(words) ?? findNamed(words.map((word, at) => (at < 2 ? (SYNONYMS[word] ?? word) : word)));
}

function findNamed(words: readonly string[]): Found | undefined {
  const found = NAMED.find(({ words: name }) => name.every((word, at) => words[at] === word));
  return found && { command: found.command, taken: found.words.length };
}

/** The synonyms of a command's shortest name: `list` for `ls`. */
export function synonymsOf({ name, short = [] }: Command): readonly string[] {
  const shortest = short[0] ?? name;
  return Object.keys(SYNONYMS).filter((word) => SYNONYMS[word] === shortest);
}
