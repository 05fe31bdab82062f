/** `berth service-account …`: holders of API keys that are not people. */
import type { ServiceAccount } from '../../../client/src/generated.ts';
import type { Call, Command } from '../command.ts';
import { collect, findNamed, type Kind, warnOfNamesakes } from '../reading.ts';
import { scopeCell, scopeWords } from '../scope.ts';
import { ago, timeCell } from '../table.ts';

const SERVICE_ACCOUNT: Kind<ServiceAccount> = {
  what: 'service account',
  list: 'berth service-account ls',
  detail: ({ scope, created_at }) => `${scopeWords(scope)}, created ${ago(created_at)}`,
};

async function create(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const body = { name: args[0] ?? '', scope: options.text('scope') ?? '*' };
  const berth = session.berth();
  const made = await berth.call('createServiceAccount', { body });
  const next = `berth api-key create NAME --service-account ${made.id}`;
  const sentence = `Created ${made.name} (${made.id}): its keys may have ${scopeWords(made.scope)}.`;
  terminal.done(`${sentence} Give it a key: ${next}`, made, made.id);
  await warnOfNamesakes(call, berth.list('listServiceAccounts', {}), made, SERVICE_ACCOUNT);
}

/** The id of a service account, said by id or name. */
export async function serviceAccountId({ session }: Pick<Call, 'session'>, said: string): Promise<string> {
  return (await findNamed(session.berth().list('listServiceAccounts', {}), said, SERVICE_ACCOUNT)).id;
}

export const SERVICE_ACCOUNT_COMMANDS: readonly Command[] = [
  {
    name: 'service-account create',
    args: ['NAME'],
    summary: 'create a service account, whose API keys belong to no person',
    example: "berth service-account create ci --scope 'instances:read vm:write'",
    options: {
      scope: {
        type: 'string',
        value: 'SCOPE',
        help: 'the largest scope that its keys can have: resource:action, separated by spaces; default: all permissions',
      },
    },
    run: create,
  },
  {
    name: 'service-account ls',
    summary: 'list the service accounts of the organisation',
    example: 'berth service-account ls',
    run: async ({ session, terminal }) => {
      terminal.list(await collect(session.berth().list('listServiceAccounts', {})), {
        headings: ['NAME', 'SCOPE', 'CREATED', 'ID'],
        row: ({ name, scope, created_at, id }) => [name, scopeCell(scope), timeCell(created_at), id],
        quiet: ({ id }) => id,
        empty: 'No service accounts. Create one: berth service-account create NAME',
      });
      return undefined;
    },
  },
  {
    name: 'service-account rm',
    args: ['ACCOUNT'],
    summary: 'delete a service account; its API keys no longer work',
    example: 'berth service-account rm ci',
    run: async (call) => {
      const { session, terminal, args } = call;
      const berth = session.berth();
      const found = await findNamed(berth.list('listServiceAccounts', {}), args[0] ?? '', SERVICE_ACCOUNT);
      await berth.call('deleteServiceAccount', { path: { id: found.id } });
      terminal.done(`Deleted ${found.name}. Its API keys no longer work.`, { deleted: found.id }, found.id);
      return undefined;
    },
  },
];
