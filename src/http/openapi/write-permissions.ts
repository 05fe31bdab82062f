/**
 * `docs/permissions.md`: what each role and scope may do, printed from the one table (`auth/permissions.ts`) and from
 * what every route asks of its caller. Run as a program it writes the file.
 */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ALL_SCOPES, ROLE_SCOPES, type Scope } from '../../auth/permissions.ts';
import { ROLES } from '../../db/tables.ts';
import type { RouteAccess } from '../access-of.ts';
import { openApiText } from './write-openapi.ts';

export const PERMISSIONS_PATH = join(import.meta.dirname, '..', '..', '..', 'docs', 'permissions.md');

interface Route {
  readonly name: string;
  readonly summary: string;
  readonly access: RouteAccess;
}

const HEAD = `# Who may do what

Printed from the code by \`node src/http/openapi/write-permissions.ts\`; a test fails when it is not current.

- A **session** may do what its person's role in the organisation may.
- An **API key** may do what its own scope and its maker's present role both allow; it ends with the membership.
- A **service account** has the scope that it was given and no role. Its keys are never let in where a person is meant.
- \`write\` does not imply \`read\`. \`*\` stands for every scope.
- What is refused for a role or a scope is 403 FORBIDDEN; a resource of another organisation is 404.`;

const REFINEMENTS = `## Beside the tables

- Routes below \`/v1/orgs/{id}\` ask for the role in the organisation of the path, whatever \`Berth-Org\` says.
- Any member may look up their own membership (\`GET …/members/{user_id}\`) and leave (\`DELETE\` of the same);
  those of others are for owners and admins.
- Only owners make and unmake owners. The last owner stays while others, or instances, are there.
- API keys are one's own. Owners and admins also see, make, rotate and revoke those of service accounts.
- Webhooks are changed, looked into and asked to send by owners and admins: by people, with a session or their key. A service account
  has no role, so with \`webhooks:read\` it lists them and no more.
- A key or service account is never made with more than its maker may do.
- Notifications are one's own: a key reads its maker's, a service account those about itself.
- Events of instances, VMs, disks and keys need \`instances:read\`, all others \`org:read\`; a caller with one scope sees those alone.
- A session of an account whose address is not confirmed makes no API key, registers no SSH key and accepts no invitation: 403, until the
  token of the mail is confirmed. Without \`BERTH_SMTP_URL\` every address counts as confirmed.
- \`POST /v1/auth/sudo\` with an API key is 401: what is missing is a session.`;

export async function permissionsText(): Promise<string> {
  const routes = routesOf(await openApiText());
  return `${[HEAD, '## Roles', roleTable(), '## Routes', routeTable(routes), REFINEMENTS].join('\n\n')}\n`;
}

function routesOf(document: string): Route[] {
  const { paths } = JSON.parse(document) as {
    paths: Record<string, Record<string, { summary: string; 'x-access': RouteAccess }>>;
  };
  return Object.entries(paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({
      name: `${method.toUpperCase()} ${path}`,
      summary: operation.summary,
      access: operation['x-access'],
    })),
  );
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}

function roleTable(): string {
  const rows = ALL_SCOPES.map((scope) => [
    `\`${scope}\``,
    ...ROLES.map((role) => (ROLE_SCOPES[role].includes(scope) ? 'yes' : '')),
  ]);
  return table(['scope', ...ROLES], rows);
}

function routeTable(routes: readonly Route[]): string {
  const rows = routes.map(({ name, summary, access }) => [
    `\`${name}\``,
    summary.replaceAll('|', '\\|'),
    scopesOf(access)
      .map((scope) => `\`${scope}\``)
      .join(' or '),
    rolesOf(access),
    access.kind === 'public' ? 'nothing' : access.kind === 'session' ? 'session' : 'session, API key',
    access.service_accounts ? 'yes' : '',
    access.sudo ? 'yes' : '',
  ]);
  return table(['route', 'what it does', 'scope', 'role', 'credential', 'service accounts', 'sudo'], rows);
}

function scopesOf({ scope, any_scope }: RouteAccess): readonly Scope[] {
  return any_scope ?? (scope === null ? [] : [scope]);
}

/** Whose role has the scope, and is among those that the route asks for. */
function rolesOf(access: RouteAccess): string {
  const { kind, roles } = access;
  if (kind === 'public') return '';
  const scopes = scopesOf(access);
  const able = ROLES.filter(
    (role) =>
      (roles === null || roles.includes(role)) &&
      (scopes.length === 0 || scopes.some((scope) => ROLE_SCOPES[role].includes(scope))),
  );
  return able.length === ROLES.length ? 'any' : able.join(', ');
}

if (import.meta.main) await writeFile(PERMISSIONS_PATH, await permissionsText());
