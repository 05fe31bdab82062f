/** Server commands. Loaded only when typed, because they need the database. */
import { extname, join } from 'node:path';
import { readEnv } from '../../config/env.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota } from '../../lib/quotas.ts';
import type { Command, Options } from '../command.ts';
import { UsageError } from '../command-error.ts';

const optionOf = (quota: OrganisationQuota) => quota.replaceAll('_', '-');

const CAPACITY = {
  cpus: { type: 'string', value: 'N', help: 'the most CPUs of one VM there' },
  memory: { type: 'string', value: 'GIB', help: 'memory of all VMs there together, in GiB' },
} as const;

function capacityOf(options: Options) {
  return { cpus: options.text('cpus'), memory: options.text('memory') };
}

async function onServer(
  work: (parts: {
    context: typeof import('../server-context.ts');
    users: typeof import('../user-commands.ts');
    identities: typeof import('../identity-commands.ts');
    orgs: typeof import('../org-commands.ts');
    hosts: typeof import('../host-commands.ts');
  }) => Promise<string>,
): Promise<undefined> {
  const [context, users, identities, orgs, hosts] = await Promise.all([
    import('../server-context.ts'),
    import('../user-commands.ts'),
    import('../identity-commands.ts'),
    import('../org-commands.ts'),
    import('../host-commands.ts'),
  ]);
  process.stdout.write(await work({ context, users, identities, orgs, hosts }));
}

/** Runs the program of npm start in this process, so that signals and exit code pass unchanged. */
async function server(): Promise<undefined> {
  const program = join(import.meta.dirname, '..', '..', `main${extname(import.meta.filename)}`);
  process.execve?.(process.execPath, [process.execPath, program, 'start'], readEnv());
  throw new Error('berth server needs Node.js 24 on Linux');
}

export const SERVER_COMMANDS: readonly Command[] = [
  {
    name: 'server',
    summary: 'run Berth on this machine until Ctrl-C, as npm start does',
    example: 'BERTH_DATA_DIR=/var/lib/berth berth server',
    on_server: true,
    run: server,
  },
  {
    name: 'migrate',
    summary: "bring the database to this version's schema, before the control planes of a fleet are upgraded",
    example: 'DATABASE_URL=postgres://berth@db1,db2/berth berth migrate',
    on_server: true,
    run: async () => {
      const { migrateDatabase } = await import('../database-commands.ts');
      process.stdout.write(await migrateDatabase());
      return undefined;
    },
  },
  {
    name: 'user ls',
    summary: 'list accounts',
    example: 'berth user ls',
    on_server: true,
    run: ({ terminal }) =>
      onServer(({ context, users }) => context.withServer((server) => users.listUsers(server, terminal))),
  },
  {
    name: 'user unlock',
    args: ['EMAIL'],
    summary: 'unlock an account that wrong passwords have locked',
    example: 'berth user unlock ada@example.org',
    on_server: true,
    run: ({ args: [email = ''] }) =>
      onServer(({ context, users }) => context.withServer((server) => users.unlockUser(server, email))),
  },
  {
    name: 'user reset-password',
    args: ['EMAIL'],
    summary: 'set a generated password for an account, and print it',
    example: 'berth user reset-password ada@example.org',
    on_server: true,
    run: ({ args: [email = ''] }) =>
      onServer(({ context, users }) => context.withServer((server) => users.resetPassword(server, email))),
  },
  {
    name: 'user reset-mfa',
    args: ['EMAIL'],
    summary: 'remove every second factor and recovery code of an account',
    example: 'berth user reset-mfa ada@example.org',
    on_server: true,
    run: ({ args: [email = ''] }) =>
      onServer(({ context, users }) => context.withServer((server) => users.resetMfa(server, email))),
  },
  {
    name: 'user sync',
    args: ['[EMAIL]'],
    summary: 'ask the OpenID provider about an account, or all, now: groups and roles follow',
    example: 'berth user sync ada@example.org',
    on_server: true,
    run: ({ args: [email] }) =>
      onServer(({ context, identities }) =>
        context.withServer((server) => identities.syncUsers(server, email)),
      ),
  },
  {
    name: 'user unlink',
    args: ['EMAIL'],
    summary: 'forget who an account is at the OpenID provider, and end its sessions',
    example: 'berth user unlink ada@example.org',
    on_server: true,
    run: ({ args: [email = ''] }) =>
      onServer(({ context, identities }) =>
        context.withServer((server) => identities.unlinkUser(server, email)),
      ),
  },
  {
    name: 'org quota',
    args: ['[ORG]'],
    summary: "list all organisations, or show or change an organisation's quotas",
    example: 'berth org quota Acme --instances 50 --cpus unlimited --disk-gib default',
    on_server: true,
    options: Object.fromEntries(
      ORGANISATION_QUOTAS.map((quota) => [
        optionOf(quota),
        { type: 'string', value: 'N', help: 'a number, unlimited, or default' },
      ]),
    ),
    run: ({ args: [org], options, terminal }) => {
      const given = ORGANISATION_QUOTAS.flatMap((quota) => {
        const value = options.text(optionOf(quota));
        return value === undefined ? [] : [[quota, value] as const];
      });
      if (org === undefined && given.length > 0) throw new UsageError('ORG is missing');
      return onServer(({ context, orgs }) =>
        context.withServer((server) =>
          org === undefined
            ? orgs.listOrgs(server, terminal)
            : orgs.orgQuota(server, org, Object.fromEntries(given)),
        ),
      );
    },
  },
  {
    name: 'host ls',
    summary: 'list the machines that VMs run on',
    example: 'berth host ls',
    on_server: true,
    run: ({ terminal }) =>
      onServer(({ context, hosts }) => context.withServer((server) => hosts.listHosts(server, terminal))),
  },
  {
    name: 'host add',
    args: ['NAME'],
    summary: 'add another machine, and print its token, which is shown only once',
    example: 'berth host add rack-2 --cpus 32 --memory 120 > token',
    on_server: true,
    options: CAPACITY,
    run: async ({ args: [name = ''], options, terminal }) => {
      await onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.addHost(server, name, capacityOf(options))),
      );
      terminal.warn(
        `Added ${name}. Its token is shown only once: put it into a file on that machine, set BERTH_HOST_TOKEN_FILE and BERTH_CONTROL_PLANE there, and run npm start.`,
      );
    },
  },
  {
    name: 'host set',
    args: ['NAME'],
    summary: 'set how much of another machine VMs may use',
    example: 'berth host set rack-2 --memory 240',
    on_server: true,
    options: CAPACITY,
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.setHost(server, name, capacityOf(options))),
      ),
  },
  {
    name: 'host drain',
    args: ['NAME'],
    summary: 'place no more VMs on a host; the VMs there keep running',
    example: 'berth host drain rack-2',
    on_server: true,
    options: { undo: { type: 'boolean', help: 'place VMs on it again' } },
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.drainHost(server, name, options.flag('undo'))),
      ),
  },
  {
    name: 'host rm',
    args: ['NAME'],
    summary: 'remove a host, and revoke its token',
    example: 'berth host rm rack-2',
    on_server: true,
    options: { lost: { type: 'boolean', help: 'the machine is gone for good, with everything on it' } },
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.removeHost(server, name, options.flag('lost'))),
      ),
  },
  {
    name: 'audit verify',
    args: ['[ORG]'],
    summary: 'check that no entry of the audit log was changed, removed or inserted',
    example: 'berth audit verify',
    on_server: true,
    run: ({ args: [org] }) =>
      onServer(({ context, orgs }) =>
        context.withServer((server) => orgs.verifyAudit(server, org), { any_key: true }),
      ),
  },
];
