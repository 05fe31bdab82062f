/**
 * Defines the commands that run on the server and use its database: accounts, quotas, hosts, ingresses, images, keys,
 * and the start of Berth itself. This file has their names and options. Their implementation is in `../server/`, which
 * is loaded only when such a command runs.
 */
import { extname, join } from 'node:path';
import { readEnv } from '../../config/env.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota } from '../../shared/quotas.ts';
import type { Call, Command, Options } from '../command.ts';
import { UsageError } from '../command-error.ts';
import type { ServerContext } from '../server/context.ts';

const optionOf = (quota: OrganisationQuota) => quota.replaceAll('_', '-');

const CAPACITY = {
  cpus: { type: 'string', value: 'N', help: 'the most CPUs of one VM there' },
  memory: { type: 'string', value: 'GIB', help: 'memory of all VMs there together, in GiB' },
} as const;

function capacityOf(options: Options) {
  return { cpus: options.text('cpus'), memory: options.text('memory') };
}

const PARTS = {
  accounts: () => import('../server/accounts.ts'),
  hosts: () => import('../server/hosts.ts'),
  fleet: () => import('../server/fleet.ts'),
  images: () => import('../server/images.ts'),
};
type Part = keyof typeof PARTS;
type Work<P extends Part> = (
  on: Awaited<ReturnType<(typeof PARTS)[P]>>,
  server: ServerContext,
  call: Call,
) => Promise<string>;

/** Prints what the work returns. @param stopped it works while no Berth runs */
function onServer<P extends Part>(part: P, work: Work<P>, stopped = false) {
  return async (call: Call): Promise<undefined> => {
    const [{ withServer, withStoppedServer }, on] = await Promise.all([
      import('../server/context.ts'),
      PARTS[part]() as ReturnType<(typeof PARTS)[P]>,
    ]);
    const within = stopped ? withStoppedServer : withServer;
    process.stdout.write(await within((server) => work(on, server, call)));
  };
}

/** Runs the program in this process, so that signals and exit code pass unchanged. */
function become(...words: readonly string[]): never {
  const program = join(import.meta.dirname, '..', '..', `main${extname(import.meta.filename)}`);
  process.execve?.(process.execPath, [process.execPath, program, ...words], readEnv());
  throw new Error('this command needs Node.js 24 on Linux');
}

const launch = (machine: 'all' | 'control-plane' | 'host') => async () => become('start', machine);

export const SERVER_COMMANDS: readonly Command[] = [
  {
    name: 'server',
    summary: 'run Berth on this machine until Ctrl-C, as npm start does',
    example: 'BERTH_DATA_DIR=/var/lib/berth berth server',
    run: launch('all'),
  },
  {
    name: 'control-plane',
    summary: 'run a control plane of a fleet on this machine until Ctrl-C, without VMs',
    details:
      'Any number of them run on one database. Each needs DATABASE_URL, BERTH_S3_BUCKET, BERTH_HOSTS_LISTEN and the same BERTH_SECRET_KEY.',
    example: 'BERTH_HOSTS_LISTEN=10.0.0.2:7500 berth control-plane',
    run: launch('control-plane'),
  },
  {
    name: 'host',
    summary: 'run VMs of a fleet on this machine until Ctrl-C',
    details: 'It needs BERTH_CONTROL_PLANE and BERTH_HOST_TOKEN_FILE, and no bucket.',
    example: 'BERTH_CONTROL_PLANE=https://10.0.0.1:7500 BERTH_HOST_TOKEN_FILE=/etc/berth/token berth host',
    run: launch('host'),
  },
  {
    name: 'migrate',
    summary: "bring the database to this version's schema, before the control planes of a fleet are upgraded",
    example: 'DATABASE_URL=postgres://berth@db1,db2/berth berth migrate',
    run: async () => {
      const { migrateDatabase } = await import('../server/context.ts');
      process.stdout.write(await migrateDatabase());
    },
  },
  {
    name: 'user ls',
    summary: 'list accounts',
    example: 'berth user ls',
    run: onServer('accounts', (on, server, { terminal }) => on.listUsers(server, terminal)),
  },
  {
    name: 'user unlock',
    args: ['EMAIL'],
    summary: 'unlock an account that wrong passwords have locked',
    example: 'berth user unlock ada@example.org',
    run: onServer('accounts', (on, server, { args: [email = ''] }) => on.unlockUser(server, email)),
  },
  {
    name: 'user reset-password',
    args: ['EMAIL'],
    summary: 'set a generated password for an account, and print it',
    example: 'berth user reset-password ada@example.org',
    run: onServer('accounts', (on, server, { args: [email = ''] }) => on.resetPassword(server, email)),
  },
  {
    name: 'user reset-mfa',
    args: ['EMAIL'],
    summary: 'remove every second factor and recovery code of an account',
    example: 'berth user reset-mfa ada@example.org',
    run: onServer('accounts', (on, server, { args: [email = ''] }) => on.resetMfa(server, email)),
  },
  {
    name: 'user sync',
    args: ['[EMAIL]'],
    summary: 'ask the OpenID provider about an account, or all, now: groups and roles follow',
    example: 'berth user sync ada@example.org',
    run: onServer('accounts', (on, server, { args: [email] }) => on.syncUsers(server, email)),
  },
  {
    name: 'user unlink',
    args: ['EMAIL'],
    summary: 'forget who an account is at the OpenID provider, and end its sessions',
    example: 'berth user unlink ada@example.org',
    run: onServer('accounts', (on, server, { args: [email = ''] }) => on.unlinkUser(server, email)),
  },
  {
    name: 'org quota',
    args: ['[ORG]'],
    summary: "list all organisations, or show or change an organisation's quotas",
    example: 'berth org quota Acme --instances 50 --cpus unlimited --disk-gib default',
    options: Object.fromEntries(
      ORGANISATION_QUOTAS.map((quota) => [
        optionOf(quota),
        { type: 'string', value: 'N', help: 'a number, unlimited, or default' },
      ]),
    ),
    run: onServer('accounts', async (on, server, { args: [org], options, terminal }) => {
      const given = ORGANISATION_QUOTAS.flatMap((quota) => {
        const value = options.text(optionOf(quota));
        return value === undefined ? [] : [[quota, value] as const];
      });
      if (org !== undefined) return on.orgQuota(server, org, Object.fromEntries(given));
      if (given.length > 0) throw new UsageError('ORG is missing');
      return on.listOrgs(server, terminal);
    }),
  },
  {
    name: 'host ls',
    summary: 'list the machines that VMs run on',
    example: 'berth host ls',
    run: onServer('hosts', (on, server, { terminal }) => on.listHosts(server, terminal)),
  },
  {
    name: 'host add',
    args: ['NAME'],
    summary: 'add another machine, and print its join token, which works once, within 24 hours',
    example: 'berth host add rack-2 --cpus 32 --memory 120 > token',
    options: CAPACITY,
    run: async (call) => {
      const [name = ''] = call.args;
      await onServer('hosts', (on, server) => on.addHost(server, name, capacityOf(call.options)))(call);
      call.terminal.warn(
        `Added ${name}. Its token works once, within 24 hours: put it into a file on that machine, set BERTH_HOST_TOKEN_FILE and BERTH_CONTROL_PLANE there, and run berth host.`,
      );
    },
  },
  {
    name: 'host show',
    args: ['NAME'],
    summary: 'show a host, and how far its drain is',
    example: 'berth host show rack-2',
    run: onServer('hosts', (on, server, { args: [name = ''] }) => on.showHost(server, name)),
  },
  {
    name: 'host set',
    args: ['NAME'],
    summary: 'set labels and taints of a host, and how much of another machine VMs may use',
    details:
      'An instance with a host label (berth set NAME --host-label) runs only on hosts that have it. A host with a taint takes only instances that tolerate it (--tolerate).',
    example: 'berth host set rack-2 --memory 240 --labels zone=b --taints gpu',
    options: {
      ...CAPACITY,
      labels: { type: 'string', value: 'KEY=VALUE,…', help: "replaces the labels; '' for none" },
      taints: { type: 'string', value: 'TAINT,…', help: "replaces the taints; '' for none" },
    },
    run: onServer('hosts', (on, server, { args: [name = ''], options }) =>
      on.setHost(server, name, {
        ...capacityOf(options),
        labels: options.text('labels'),
        taints: options.text('taints'),
      }),
    ),
  },
  {
    name: 'host cordon',
    args: ['NAME'],
    summary: 'place no more VMs on a host; the VMs there keep running',
    example: 'berth host cordon rack-2',
    run: onServer('hosts', (on, server, { args: [name = ''] }) => on.cordonHost(server, name)),
  },
  {
    name: 'host drain',
    args: ['NAME'],
    summary: 'place no more VMs on a host, and move its VMs to other hosts, with their memory',
    details:
      'Each VM is suspended there and resumes on another host: the same memory, processes, SSH port and host key. Connections end. Where its memory cannot go, the VM stops and starts.',
    example: 'berth host drain rack-2',
    run: onServer('hosts', (on, server, { args: [name = ''] }) => on.drainHost(server, name)),
  },
  {
    name: 'host uncordon',
    args: ['NAME'],
    summary: 'place VMs on a host again, and end its drain',
    example: 'berth host uncordon rack-2',
    run: onServer('hosts', (on, server, { args: [name = ''] }) => on.uncordonHost(server, name)),
  },
  {
    name: 'host rotate',
    args: ['NAME'],
    summary: 'have a host replace its credential; it does so every 30 days by itself',
    details:
      'With --join its credential is revoked at once, and the host joins with the token that is printed. Its VMs run on until its lease expires (for 40 s, if it has none).',
    example: 'berth host rotate rack-2',
    options: { join: { type: 'boolean', help: 'revoke the credential, and print a new join token' } },
    run: onServer('hosts', (on, server, { args: [name = ''], options }) =>
      on.rotateHost(server, name, options.flag('join')),
    ),
  },
  {
    name: 'host rm',
    args: ['NAME'],
    summary: 'remove a host, and revoke its credential',
    example: 'berth host rm rack-2',
    options: { lost: { type: 'boolean', help: 'the machine is gone for good, with everything on it' } },
    details:
      'With --lost its VMs can start elsewhere when its lease and a margin are over (47 s by default), as if it had fallen silent: the command says when. Writes after their last flush are lost.',
    run: onServer('hosts', (on, server, { args: [name = ''], options }) =>
      on.removeHost(server, name, options.flag('lost')),
    ),
  },
  {
    name: 'host replace',
    args: ['NAME'],
    summary: 'let npm start with another data folder be the host local, because its machine is gone',
    details:
      'The host local is one data folder: with DATABASE_URL, npm start on another one exits and names this command. It works while no Berth runs. The VMs of the machine that is gone fail, and can start elsewhere, when its lease and a margin are over (47 s by default); writes after their last flush are lost. Switch that machine off first.',
    example: 'berth host replace local --machine-gone',
    options: { 'machine-gone': { type: 'boolean', help: 'no VM runs on its machine any more' } },
    run: onServer(
      'hosts',
      (on, server, { args: [name = ''], options }) =>
        on.replaceHost(server, name, options.flag('machine-gone')),
      true,
    ),
  },
  {
    name: 'ingress',
    summary: 'hold the ports of instances on this machine until Ctrl-C, for control planes elsewhere',
    details:
      'It needs BERTH_CONTROL_PLANE and BERTH_INGRESS_TOKEN_FILE, needs no root, and keeps only the list of control planes in BERTH_DATA_DIR.',
    example:
      'BERTH_CONTROL_PLANE=https://10.0.0.1:7500 BERTH_INGRESS_TOKEN_FILE=/etc/berth/token BERTH_SSH_LISTEN=0.0.0.0 berth ingress',
    // It prepares nothing and keeps nothing, so it needs no launcher.
    run: async () => {
      const { checkIngress } = await import('../server/fleet.ts');
      await checkIngress();
      return become('ingress');
    },
  },
  {
    name: 'ingress ls',
    summary: 'list the processes that hold the ports of instances',
    example: 'berth ingress ls',
    run: onServer('fleet', (on, server, { terminal }) => on.showIngresses(server, terminal)),
  },
  {
    name: 'ingress add',
    args: ['NAME'],
    summary: 'add an ingress on another machine, and print its token, which is shown only once',
    example: 'berth ingress add front-2 > token',
    run: async (call) => {
      const [name = ''] = call.args;
      await onServer('fleet', (on, server) => on.addIngress(server, name))(call);
      call.terminal.warn(
        `Added ${name}. Its token is shown only once: put it into a file on that machine, set BERTH_INGRESS_TOKEN_FILE and BERTH_CONTROL_PLANE there, and run berth ingress.`,
      );
    },
  },
  {
    name: 'ingress rm',
    args: ['NAME'],
    summary: 'remove an ingress, and revoke its token',
    example: 'berth ingress rm front-2',
    run: onServer('fleet', (on, server, { args: [name = ''] }) => on.removeIngress(server, name)),
  },
  {
    name: 'audit verify',
    args: ['[ORG]'],
    summary: 'check that no entry of the audit log was changed, removed or inserted',
    example: 'berth audit verify',
    run: onServer('accounts', (on, server, { args: [org] }) => on.verifyAudit(server, org)),
  },
  {
    name: 'image build',
    args: ['NAME'],
    summary: 'build an image from Debian packages: debian-12 or debian-12-systemd',
    example: 'berth image build debian-12-systemd',
    run: onServer('images', (on, server, call) => on.buildImage(server, call.args[0] ?? '', call)),
  },
  {
    name: 'image add',
    args: ['NAME', 'FILE'],
    summary: 'create an image from a tarball, an OCI layout, or a raw or qcow2 disk',
    example: 'berth image add tools ./tools.oci.tar',
    options: {
      'max-gib': { type: 'string', value: 'N', help: 'the maximum size when unpacked; default: 16' },
    },
    run: onServer('images', (on, server, call) => {
      const [name = '', file = ''] = call.args;
      return on.addImage(
        server,
        [name, file],
        Number(call.options.text('max-gib') ?? on.DEFAULT_MAX_GIB),
        call,
      );
    }),
  },
  {
    name: 'image rm',
    args: ['NAME', '[VERSION]'],
    summary: 'remove an image that no disk needs, or one version of it',
    example: 'berth image rm tools',
    run: onServer('images', (on, server, { args: [name = '', version = null] }) =>
      on.removeImages(server, name, version),
    ),
  },
  {
    name: 'secret-key rotate',
    args: ['FILE'],
    summary: 'have the key in a file open the database beside the present one; a missing file gets a new key',
    details:
      'The first step of replacing BERTH_SECRET_KEY, while everything runs: docs/operating/rotation.md has the others.',
    example: 'berth secret-key rotate /root/new-secret-key',
    run: onServer('fleet', (on, server, { args: [file = ''] }) => on.rotateSecretKey(server, file)),
  },
  {
    name: 'secret-key forget-old',
    summary: 'finish a rotation: only the new key, which must be the one in the settings, opens the database',
    example: 'berth secret-key forget-old',
    run: onServer('fleet', (on, server) => on.forgetKey(server, 'old')),
  },
  {
    name: 'secret-key forget-new',
    summary:
      'give up a rotation: only the old key, which must be the one in the settings, opens the database',
    example: 'berth secret-key forget-new',
    run: onServer('fleet', (on, server) => on.forgetKey(server, 'new')),
  },
  {
    name: 'certificate show',
    summary: 'show which control plane shows hosts which certificate, and how far a replacement is',
    example: 'berth certificate show',
    run: onServer('fleet', (on, server) => on.showHostsCertificate(server)),
  },
  {
    name: 'certificate renew',
    summary: 'replace the certificate by which hosts and ingresses know the control planes',
    details: 'The first step, while everything runs: docs/operating/rotation.md has the others.',
    example: 'berth certificate renew',
    run: onServer('fleet', (on, server) => on.renewHostsCertificate(server)),
  },
];
