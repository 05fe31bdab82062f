/** The command line: `berth NOUN VERB …`. Exit codes: 0 done, 1 failed, 2 wrong words or settings. */
import { parseArgs } from 'node:util';
import { refuse, StartError } from '../launch/start-error.ts';
import { CommandError } from './command-error.ts';
import { listOrgs, orgQuota, QUOTA_NAMES, verifyAudit } from './org-commands.ts';
import { withServer } from './server-context.ts';
import { listUsers, resetPassword, unlockUser } from './user-commands.ts';

const USAGE = `usage, on the server (settings as for npm start):
  berth user ls
  berth user unlock EMAIL
  berth user reset-password EMAIL
  berth org ls
  berth org quota ORG [--instances N] [--cpus N] [--memory-mib N] [--disk-gib N]   (N or none)
  berth audit verify [ORG]
`;

class UsageError extends Error {}

const QUOTA_OPTIONS = Object.fromEntries(
  QUOTA_NAMES.map((name) => [name.replaceAll('_', '-'), { type: 'string' as const }]),
);

async function run(args: readonly string[]): Promise<string> {
  const { values, positionals } = parse(args);
  const [noun, verb, subject, ...rest] = positionals;
  const quota = Object.fromEntries(
    Object.entries(values).map(([name, value]) => [name.replaceAll('-', '_'), value]),
  );
  const command = `${noun} ${verb}`;
  if (rest.length > 0 || (command !== 'org quota' && Object.keys(quota).length > 0)) throw new UsageError();
  if (subject === undefined) {
    if (command === 'user ls') return withServer(listUsers);
    if (command === 'org ls') return withServer(listOrgs);
    if (command === 'audit verify') return withServer((server) => verifyAudit(server, undefined));
    throw new UsageError();
  }
  switch (command) {
    case 'user unlock':
      return withServer((server) => unlockUser(server, subject));
    case 'user reset-password':
      return withServer((server) => resetPassword(server, subject));
    case 'org quota':
      return withServer((server) => orgQuota(server, subject, quota));
    case 'audit verify':
      return withServer((server) => verifyAudit(server, subject));
    default:
      throw new UsageError();
  }
}

function parse(args: readonly string[]) {
  try {
    return parseArgs({ args: [...args], options: QUOTA_OPTIONS, allowPositionals: true, strict: true });
  } catch {
    throw new UsageError();
  }
}

run(process.argv.slice(2)).then(
  (text) => {
    process.stdout.write(text);
  },
  (error: unknown) => {
    if (error instanceof UsageError) {
      process.stderr.write(USAGE);
      process.exitCode = 2;
    } else if (error instanceof StartError) {
      process.exitCode = refuse(error);
    } else if (error instanceof CommandError) {
      process.stderr.write(`berth: ${error.message}\n`);
      process.exitCode = 1;
    } else {
      throw error;
    }
  },
);
