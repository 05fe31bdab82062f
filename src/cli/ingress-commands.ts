/** `berth ingress …`, on the server. */
import { readEnv } from '../config/env.ts';
import { transaction } from '../control-plane/db/pool.ts';
import { deleteIngress, insertIngress, listIngresses } from '../control-plane/fleet/control-plane-store.ts';
import { hashToken, INGRESS_PREFIX, newToken } from '../control-plane/identity/tokens.ts';
import { checkIngressJoin } from '../launcher/join.ts';
import { configOrRefuse } from '../launcher/start.ts';
import { composeJoinToken, refusalOf } from '../protocol/protocol.ts';
import { rfc3339 } from '../shared/clock.ts';
import { pinnedCertificate } from './certificate-commands.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { NAME_RULE } from './numbers.ts';
import { noteOperator, type ServerContext } from './server-context.ts';
import { timeCell } from './table.ts';
import { Terminal } from './terminal.ts';

/** Refuses settings with which `berth ingress` cannot run. @throws StartError */
export function checkIngress(): Promise<void> {
  return checkIngressJoin(configOrRefuse(readEnv(), process.cwd()));
}

/** Prints the token of a new ingress, once. */
export async function addIngress(server: ServerContext, name: string): Promise<string> {
  const { db } = server;
  if (!/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/.test(name))
    throw new CommandError(NAME_RULE, { exit_code: EXIT.usage });
  const certificate = await pinnedCertificate(server);
  const token = newToken(INGRESS_PREFIX);
  await transaction(db, async (tx) => {
    const id = await insertIngress(tx, name, hashToken(token));
    if (id === null)
      throw new CommandError(`there is an ingress ${name} already`, {
        next: `another name, or berth ingress rm ${name}`,
        exit_code: EXIT.state,
      });
    await noteOperator(tx, server, 'ingress.add', id, { name });
  });
  return `${composeJoinToken(token, certificate)}\n`;
}

export async function showIngresses(
  { db }: ServerContext,
  terminal = new Terminal('human'),
): Promise<string> {
  const rows = await listIngresses(db);
  const listed = terminal.listText(rows, {
    headings: ['NAME', 'STATE', 'WATCHING SINCE', 'LAST SEEN'],
    row: ({ name, state, watching_since, reported_at }) => [
      name,
      state,
      timeCell(watching_since ? rfc3339(watching_since) : null),
      timeCell(reported_at ? rfc3339(reported_at) : null),
    ],
    more: { headings: ['ID'], row: ({ id }) => [id] },
    quiet: ({ name }) => name,
    empty: 'No ingresses.',
  });
  const refused = rows.flatMap(({ name, protocol }) => {
    const refusal = protocol === null ? null : refusalOf(protocol);
    return refusal === null ? [] : [`${name} is refused. ${refusal}\n`];
  });
  return terminal.format === 'human' ? listed + refused.join('') : listed;
}

/** Revokes its token: its next call is refused, and its routes and tunnels end with it. */
export async function removeIngress(server: ServerContext, name: string): Promise<string> {
  return transaction(server.db, async (tx) => {
    const id = await deleteIngress(tx, name);
    if (id === undefined) {
      const known = (await listIngresses(tx)).some((each) => each.name === name);
      if (known)
        throw new CommandError(
          `${name} is the ingress of a control plane's machine, which cannot be removed`,
          {
            exit_code: EXIT.state,
          },
        );
      throw new CommandError(`there is no ingress ${name}`, {
        next: 'berth ingress ls',
        exit_code: EXIT.not_found,
      });
    }
    await noteOperator(tx, server, 'ingress.remove', id, { name });
    return `Removed ${name}, and revoked its token. Stop Berth there: its open connections last until then.\n`;
  });
}
