/** `berth certificate renew`. Loaded only when typed, because it needs the database. */
import type { Command } from '../command.ts';

export const CERTIFICATE: Command = {
  name: 'certificate renew',
  summary: 'replace the certificate by which hosts and ingresses know the control planes',
  details:
    'The first step, while everything runs; repeated, it says how far the replacement is. docs/operating/rotation.md has the others.',
  example: 'berth certificate renew',
  on_server: true,
  run: async () => {
    const { withServer } = await import('../server-context.ts');
    const { renewHostsCertificate } = await import('../certificate-commands.ts');
    process.stdout.write(await withServer(renewHostsCertificate));
    return undefined;
  },
};
