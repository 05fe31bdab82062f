/** `berth session …`: where the account is logged in with its password or a passkey. */
import type { Session } from '../../../client/src/generated.ts';
import { programName } from '../../../client/src/words.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { collect, findNamed, type Kind } from '../reading.ts';
import { asUser } from '../session.ts';
import { ago, cell, flagCell, plural, timeCell } from '../table.ts';

const SESSION: Kind<Session> = {
  what: 'session',
  list: 'berth session ls',
  also: ({ user_agent, ip }) => [programName(user_agent), ip],
  detail: ({ user_agent, ip, last_seen_at }) =>
    `${programName(user_agent)}, from ${ip}, seen ${ago(last_seen_at)}`,
};

async function list(call: Call): Promise<undefined> {
  const sessions = await asUser(call, (berth) => collect(berth.list('listSessions', {})));
  call.terminal.list(sessions, {
    headings: ['PROGRAM', 'ADDRESS', 'LAST SEEN', 'STARTED', 'ENDS', 'ID'],
    row: ({ user_agent, current, ip, last_seen_at, created_at, ends_at, id }) => [
      cell(`${programName(user_agent)}${current ? ' (this command)' : ''}`, programName(user_agent)),
      ip,
      timeCell(last_seen_at),
      timeCell(created_at),
      timeCell(ends_at),
      id,
    ],
    more: {
      headings: ['CURRENT', 'USER AGENT'],
      row: ({ current, user_agent }) => [flagCell(current), user_agent ?? '-'],
    },
    quiet: ({ id }) => id,
    empty: 'No sessions.',
  });
}

async function remove(call: Call): Promise<undefined> {
  const { args, options, terminal } = call;
  const [said] = args;
  if ((said === undefined) !== options.flag('others')) {
    throw new UsageError('name a session, or end all with --others');
  }
  if (said === undefined) {
    const ended = await asUser(call, (berth) => berth.call('revokeOtherSessions', {}));
    return void terminal.done(
      `Ended ${plural(ended.count, 'session')}. API keys, and so the logins of command lines, continue.`,
      ended,
      String(ended.count),
    );
  }
  const { id, user_agent, ip } = await asUser(call, async (berth) => {
    const found = await findNamed(berth.list('listSessions', {}), said, SESSION);
    await berth.call('revokeSession', { path: { id: found.id } });
    return found;
  });
  terminal.done(`Ended the session of ${programName(user_agent)}, from ${ip}.`, { ended: id }, id);
}

export const SESSION_COMMANDS: readonly Command[] = [
  {
    name: 'session ls',
    password: 'unless_sudo',
    summary: 'list where your account is logged in',
    example: 'berth session ls',
    options: PROOF,
    run: list,
  },
  {
    name: 'session rm',
    password: 'unless_sudo',
    args: ['[SESSION]'],
    summary: 'end a session, by its id, program or address; --others ends all but that of this command',
    example: 'berth session rm --others',
    options: { others: { type: 'boolean', help: 'all other sessions' }, ...PROOF },
    run: remove,
  },
];
