/** `berth certificate …`. Loaded only when typed, because they need the database. */
import type { Command } from '../command.ts';

async function run(what: 'showHostsCertificate' | 'renewHostsCertificate'): Promise<undefined> {
  const { withServer } = await import('../server-context.ts');
  const commands = await import('../certificate-commands.ts');
  process.stdout.write(await withServer(commands[what]));
}

export const CERTIFICATE_COMMANDS: readonly Command[] = [
  {
    name: 'certificate show',
    summary: 'show which control plane shows hosts which certificate, and how far a replacement is',
    example: 'berth certificate show',
    on_server: true,
    run: () => run('showHostsCertificate'),
  },
  {
    name: 'certificate renew',
    summary: 'replace the certificate by which hosts and ingresses know the control planes',
    details: 'The first step, while everything runs: docs/operating/rotation.md has the others.',
    example: 'berth certificate renew',
    on_server: true,
    run: () => run('renewHostsCertificate'),
  },
];
