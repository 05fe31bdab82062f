/** Server commands. Loaded only when typed, because they need the database. */
import { extname, join } from 'node:path';
import { readEnv } from '../../config/env.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota } from '../../shared/quotas.ts';
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
    drains: typeof import('../drain-commands.ts');
    ingresses: typeof import('../ingress-commands.ts');
  }) => Promise<string>,
): Promise<undefined> {
  const [context, users, identities, orgs, hosts, drains, ingresses] = await Promise.all([
    import('../server-context.ts'),
    import('../user-commands.ts'),
    import('../identity-commands.ts'),
    import('../org-commands.ts'),
    import('../host-commands.ts'),
    import('../drain-commands.ts'),
    import('../ingress-commands.ts'),
  ]);
  process.stdout.write(await work({ context, users, identities, orgs, hosts, drains, ingresses }));
}

/** Runs the launcher in this process, so that signals and exit code pass unchanged. */
async function launch(machine: 'all' | 'control-plane' | 'host'): Promise<undefined> {
  const program = join(import.meta.dirname, '..', '..', `main${extname(import.meta.filename)}`);
  process.execve?.(process.execPath, [process.execPath, program, 'start', machine], readEnv());
  throw new Error('this command needs Node.js 24 on Linux');
}

/** Runs the ingress alone in this process. It prepares nothing and keeps nothing, so it needs no launcher. */
async function ingress(): Promise<undefined> {
  const { checkIngress } = await import('../ingress-commands.ts');
  await checkIngress();
  const program = join(import.meta.dirname, '..', '..', `main${extname(import.meta.filename)}`);
  process.execve?.(process.execPath, [process.execPath, program, 'ingress'], readEnv());
  throw new Error('berth ingress needs Node.js 24 on Linux');
}

export const SERVER_COMMANDS: readonly Command[] = [
  {
    name: 'server',
    summary: 'run Berth on this machine until Ctrl-C, as npm start does',
    example: 'BERTH_DATA_DIR=/var/lib/berth berth server',
    on_server: true,
    run: () => launch('all'),
  },
  {
    name: 'control-plane',
    summary: 'run a control plane of a fleet on this machine until Ctrl-C, without VMs',
    details:
      'Any number of them run on one database. Each needs DATABASE_URL, BERTH_S3_BUCKET, BERTH_HOSTS_LISTEN and the same BERTH_SECRET_KEY.',
    example: 'BERTH_HOSTS_LISTEN=10.0.0.2:7500 berth control-plane',
    on_server: true,
    run: () => launch('control-plane'),
  },
  {
    name: 'host',
    summary: 'run VMs of a fleet on this machine until Ctrl-C',
    details: 'It needs BERTH_CONTROL_PLANE and BERTH_HOST_TOKEN_FILE, and no bucket.',
    example: 'BERTH_CONTROL_PLANE=https://10.0.0.1:7500 BERTH_HOST_TOKEN_FILE=/etc/berth/token berth host',
    on_server: true,
    run: () => launch('host'),
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
    summary: 'add another machine, and print its join token, which works once, within 24 hours',
    example: 'berth host add rack-2 --cpus 32 --memory 120 > token',
    on_server: true,
    options: CAPACITY,
    run: async ({ args: [name = ''], options, terminal }) => {
      await onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.addHost(server, name, capacityOf(options))),
      );
      terminal.warn(
        `Added ${name}. Its token works once, within 24 hours: put it into a file on that machine, set BERTH_HOST_TOKEN_FILE and BERTH_CONTROL_PLANE there, and run berth host.`,
      );
    },
  },
  {
    name: 'host show',
    args: ['NAME'],
    summary: 'show a host, and how far its drain is',
    example: 'berth host show rack-2',
    on_server: true,
    run: ({ args: [name = ''] }) =>
      onServer(({ context, drains }) => context.withServer((server) => drains.showHost(server, name))),
  },
  {
    name: 'host set',
    args: ['NAME'],
    summary: 'set labels and taints of a host, and how much of another machine VMs may use',
    details:
      'An instance with a host label (berth set NAME --host-label) runs only on hosts that have it. A host with a taint takes only instances that tolerate it (--tolerate).',
    example: 'berth host set rack-2 --memory 240 --labels zone=b --taints gpu',
    on_server: true,
    options: {
      ...CAPACITY,
      labels: { type: 'string', value: 'KEY=VALUE,…', help: "replaces the labels; '' for none" },
      taints: { type: 'string', value: 'TAINT,…', help: "replaces the taints; '' for none" },
    },
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withServer((server) =>
          hosts.setHost(server, name, {
            ...capacityOf(options),
            labels: options.text('labels'),
            taints: options.text('taints'),
          }),
        ),
      ),
  },
  {
    name: 'host cordon',
    args: ['NAME'],
    summary: 'place no more VMs on a host; the VMs there keep running',
    example: 'berth host cordon rack-2',
    on_server: true,
    run: ({ args: [name = ''] }) =>
      onServer(({ context, drains }) => context.withServer((server) => drains.cordonHost(server, name))),
  },
  {
    name: 'host drain',
    args: ['NAME'],
    summary: 'place no more VMs on a host, and move its VMs to other hosts, with their memory',
    details:
      'Each VM is suspended there and resumes on another host: the same memory, processes, SSH port and host key. Connections end. Where its memory cannot go, the VM stops and starts.',
    example: 'berth host drain rack-2',
    on_server: true,
    run: ({ args: [name = ''] }) =>
      onServer(({ context, drains }) => context.withServer((server) => drains.drainHost(server, name))),
  },
  {
    name: 'host uncordon',
    args: ['NAME'],
    summary: 'place VMs on a host again, and end its drain',
    example: 'berth host uncordon rack-2',
    on_server: true,
    run: ({ args: [name = ''] }) =>
      onServer(({ context, drains }) => context.withServer((server) => drains.uncordonHost(server, name))),
  },
  {
    name: 'host rotate',
    args: ['NAME'],
    summary: 'have a host replace its credential; it does so every 30 days by itself',
    details:
      'With --join its credential is revoked at once, and the host joins with the token that is printed. Its VMs run on until its lease expires (for 40 s, if it has none).',
    example: 'berth host rotate rack-2',
    on_server: true,
    options: { join: { type: 'boolean', help: 'revoke the credential, and print a new join token' } },
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.rotateHost(server, name, options.flag('join'))),
      ),
  },
  {
    name: 'host rm',
    args: ['NAME'],
    summary: 'remove a host, and revoke its credential',
    example: 'berth host rm rack-2',
    on_server: true,
    options: { lost: { type: 'boolean', help: 'the machine is gone for good, with everything on it' } },
    details:
      'With --lost its VMs can start elsewhere when its lease and a margin are over (47 s by default), as if it had fallen silent: the command says when. Writes after their last flush are lost.',
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withServer((server) => hosts.removeHost(server, name, options.flag('lost'))),
      ),
  },
  {
    name: 'host replace',
    args: ['NAME'],
    summary: 'let npm start with another data folder be the host local, because its machine is gone',
    details:
      'The host local is one data folder: with DATABASE_URL, npm start on another one exits and names this command. It works while no Berth runs. The VMs of the machine that is gone fail, and can start elsewhere, when its lease and a margin are over (47 s by default); writes after their last flush are lost. Switch that machine off first.',
    example: 'berth host replace local --machine-gone',
    on_server: true,
    options: { 'machine-gone': { type: 'boolean', help: 'no VM runs on its machine any more' } },
    run: ({ args: [name = ''], options }) =>
      onServer(({ context, hosts }) =>
        context.withStoppedServer((server) => hosts.replaceHost(server, name, options.flag('machine-gone'))),
      ),
  },
  {
    name: 'ingress',
    summary: 'hold the ports of instances on this machine until Ctrl-C, for control planes elsewhere',
    details:
      'It needs BERTH_CONTROL_PLANE and BERTH_INGRESS_TOKEN_FILE, needs no root, and keeps only the list of control planes in BERTH_DATA_DIR.',
    example:
      'BERTH_CONTROL_PLANE=https://10.0.0.1:7500 BERTH_INGRESS_TOKEN_FILE=/etc/berth/token BERTH_SSH_LISTEN=0.0.0.0 berth ingress',
    on_server: true,
    run: ingress,
  },
  {
    name: 'ingress ls',
    summary: 'list the processes that hold the ports of instances',
    example: 'berth ingress ls',
    on_server: true,
    run: ({ terminal }) =>
      onServer(({ context, ingresses }) =>
        context.withServer((server) => ingresses.showIngresses(server, terminal)),
      ),
  },
  {
    name: 'ingress add',
    args: ['NAME'],
    summary: 'add an ingress on another machine, and print its token, which is shown only once',
    example: 'berth ingress add front-2 > token',
    on_server: true,
    run: async ({ args: [name = ''], terminal }) => {
      await onServer(({ context, ingresses }) =>
        context.withServer((server) => ingresses.addIngress(server, name)),
      );
      terminal.warn(
        `Added ${name}. Its token is shown only once: put it into a file on that machine, set BERTH_INGRESS_TOKEN_FILE and BERTH_CONTROL_PLANE there, and run berth ingress.`,
      );
    },
  },
  {
    name: 'ingress rm',
    args: ['NAME'],
    summary: 'remove an ingress, and revoke its token',
    example: 'berth ingress rm front-2',
    on_server: true,
    run: ({ args: [name = ''] }) =>
      onServer(({ context, ingresses }) =>
        context.withServer((server) => ingresses.removeIngress(server, name)),
      ),
  },
  {
    name: 'audit verify',
    args: ['[ORG]'],
    summary: 'check that no entry of the audit log was changed, removed or inserted',
    example: 'berth audit verify',
    on_server: true,
    run: ({ args: [org] }) =>
      onServer(({ context, orgs }) => context.withServer((server) => orgs.verifyAudit(server, org))),
  },
];
