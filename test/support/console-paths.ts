/**
 * Lists the paths of the console's pages and the buttons that open dialogs, for tests that check all of them. The pages
 * need an instance named web.
 */

export const PAGES = [
  ...['/', '/instances/web', '/instances/web/generations', '/instances/web/terminal', '/instances/web/keys'],
  ...[
    '/instances/web/egress',
    '/instances/web/secrets',
    '/instances/web/ports',
    '/instances/web/activity',
    '/instances/web/settings',
    '/usage',
    '/ssh-keys',
    '/api-keys',
    '/webhooks',
  ],
  ...['/notifications', '/organisation', '/audit', '/account', '/operator'],
] as const;

/** By page, the buttons that open a dialog. @param head the present generation of web */
export function dialogOpeners(head: number): Readonly<Record<string, readonly string[]>> {
  return {
    '/': ['New instance'],
    '/instances/web': ['Fork'],
    '/instances/web/generations': [
      'Restore generation 1',
      `Fork generation ${head}`,
      `Name generation ${head}`,
    ],
    '/instances/web/ports': ['Publish a port'],
    '/instances/web/secrets': ['Set a secret'],
    '/instances/web/settings': ['Delete web'],
    '/ssh-keys': ['Add a key', 'Revoke admin-key'],
    '/api-keys': [
      'New API key',
      'New service account',
      'Rotate deploys',
      'Revoke deploys',
      'New key of ci',
      'Delete ci',
    ],
    '/webhooks': ['New webhook'],
    '/organisation': ['New organisation', 'New link: invitation of ada@example.org'],
    '/account': ['Add an app', 'Remove phone', 'Delete my account'],
  };
}
