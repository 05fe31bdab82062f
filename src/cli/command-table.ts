/** Every command, in the order of the help. */
import type { Command } from './command.ts';
import { ACCOUNT_COMMANDS } from './commands/account-commands.ts';
import { CERTIFICATE_COMMANDS } from './commands/certificate-commands.ts';
import { COMPLETION } from './commands/completion.ts';
import { CONSOLE } from './commands/console-command.ts';
import { COPY } from './commands/copy-command.ts';
import { DATA_COMMANDS } from './commands/data-commands.ts';
import { DOCTOR } from './commands/doctor.ts';
import { EGRESS } from './commands/egress-command.ts';
import { EXEC_COMMANDS } from './commands/exec-commands.ts';
import { FORWARD } from './commands/forward-command.ts';
import { GENERATION_COMMANDS } from './commands/generation-commands.ts';
import { IMAGE_COMMANDS, IMAGE_SERVER_COMMANDS } from './commands/image-commands.ts';
import { INSTANCE_COMMANDS } from './commands/instance-commands.ts';
import { INVITATION_COMMANDS } from './commands/invitation-commands.ts';
import { KEY_COMMANDS } from './commands/key-commands.ts';
import { LOGIN_COMMANDS, REGISTER } from './commands/login-commands.ts';
import { MCP } from './commands/mcp-command.ts';
import { MEMBER_COMMANDS } from './commands/member-commands.ts';
import { METRICS } from './commands/metrics-command.ts';
import { MFA_COMMANDS } from './commands/mfa-commands.ts';
import { NOTIFICATION_COMMANDS } from './commands/notification-commands.ts';
import { OPERATOR_COMMANDS } from './commands/operator-commands.ts';
import { ORGANISATION_COMMANDS } from './commands/organisation-commands.ts';
import { PORT_COMMANDS } from './commands/port-commands.ts';
import { RENAME } from './commands/rename-command.ts';
import { SECRET_COMMANDS } from './commands/secret-commands.ts';
import { SECRET_KEY_COMMANDS } from './commands/secret-key-commands.ts';
import { SERVER_COMMANDS } from './commands/server-commands.ts';
import { SERVICE_ACCOUNT_COMMANDS } from './commands/service-account-commands.ts';
import { SESSION_COMMANDS } from './commands/session-commands.ts';
import { SSH_COMMANDS } from './commands/ssh-commands.ts';
import { UP } from './commands/up-command.ts';
import { USAGE } from './commands/usage-command.ts';
import { LOGS, TOP, VM_COMMANDS } from './commands/vm-commands.ts';
import { WATCH_COMMANDS } from './commands/watch-commands.ts';
import { WEBHOOK_COMMANDS } from './commands/webhook-commands.ts';

export interface Section {
  readonly title: string;
  readonly commands: readonly Command[];
}

export const SECTIONS: readonly Section[] = [
  { title: 'Instances', commands: [...INSTANCE_COMMANDS, RENAME, EGRESS, ...IMAGE_COMMANDS] },
  { title: 'VMs', commands: VM_COMMANDS },
  { title: 'Generations', commands: GENERATION_COMMANDS },
  { title: 'SSH', commands: [UP, ...SSH_COMMANDS] },
  { title: 'HTTP ports', commands: [...PORT_COMMANDS, FORWARD] },
  { title: 'Secrets', commands: SECRET_COMMANDS },
  { title: 'Guests', commands: [...EXEC_COMMANDS, COPY, LOGS, METRICS, TOP, USAGE, CONSOLE, MCP] },
  { title: 'Keys', commands: [...KEY_COMMANDS, ...SERVICE_ACCOUNT_COMMANDS] },
  { title: 'Login', commands: [REGISTER, ...LOGIN_COMMANDS] },
  { title: 'Account', commands: [...ACCOUNT_COMMANDS, ...SESSION_COMMANDS, ...MFA_COMMANDS] },
  {
    title: 'Organisation',
    commands: [...ORGANISATION_COMMANDS, ...MEMBER_COMMANDS, ...INVITATION_COMMANDS],
  },
  { title: 'Notifications', commands: NOTIFICATION_COMMANDS },
  { title: 'Webhooks', commands: WEBHOOK_COMMANDS },
  { title: 'Events and audit', commands: WATCH_COMMANDS },
  { title: 'Diagnostics', commands: [DOCTOR, ...OPERATOR_COMMANDS, COMPLETION] },
  {
    title: 'On the server',
    commands: [
      ...SERVER_COMMANDS,
      ...IMAGE_SERVER_COMMANDS,
      ...SECRET_KEY_COMMANDS,
      ...CERTIFICATE_COMMANDS,
      ...DATA_COMMANDS,
    ],
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
