/** `berth secret-key …`. Loaded only when typed, because they need the database. */
import type { Command } from '../command.ts';

async function forget(which: 'old' | 'new'): Promise<undefined> {
  const { withServer } = await import('../server-context.ts');
  const { forgetKey } = await import('../secret-key-commands.ts');
  process.stdout.write(await withServer((server) => forgetKey(server, which)));
}

export const SECRET_KEY_COMMANDS: readonly Command[] = [
  {
    name: 'secret-key rotate',
    args: ['FILE'],
    summary: 'have the key in a file open the database beside the present one; a missing file gets a new key',
    details:
      'The first step of replacing BERTH_SECRET_KEY, while everything runs: docs/operating/rotation.md has the others.',
    example: 'berth secret-key rotate /root/new-secret-key',
    on_server: true,
    run: async ({ args: [file = ''] }) => {
      const { withServer } = await import('../server-context.ts');
      const { rotateSecretKey } = await import('../secret-key-commands.ts');
      process.stdout.write(await withServer((server) => rotateSecretKey(server, file)));
      return undefined;
    },
  },
  {
    name: 'secret-key forget-old',
    summary: 'finish a rotation: only the new key, which must be the one in the settings, opens the database',
    example: 'berth secret-key forget-old',
    on_server: true,
    run: () => forget('old'),
  },
  {
    name: 'secret-key forget-new',
    summary:
      'give up a rotation: only the old key, which must be the one in the settings, opens the database',
    example: 'berth secret-key forget-new',
    on_server: true,
    run: () => forget('new'),
  },
];
