/** The filters of events and audit entries, and why a list of them is empty: no such actor, or no such action. */
import { AUDIT_ACTIONS } from '../../../client/src/audit-words.ts';
import { nearest } from '../../shared/nearest.ts';
import type { Call } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { timeOption } from '../duration.ts';
import { EXIT } from '../exit-codes.ts';
import { limitOf } from '../numbers.ts';

export const LIMIT = {
  limit: { type: 'string', value: 'N', help: 'how many of the newest; default: 50' },
} as const;

export const mostOf = ({ options }: Call) => limitOf(options.text('limit'));

export const FILTERS = {
  since: { type: 'string', value: 'TIME', help: 'only since then: a duration such as 24h, or a time' },
  until: { type: 'string', value: 'TIME', help: 'only before then: a duration such as 1h, or a time' },
  actor: {
    type: 'string',
    value: 'ACTOR',
    help: "only of this actor: an e-mail address, a service account's name or an id",
  },
} as const;

export const filterOf = ({ options }: Call) => ({
  since: timeOption('since', options.text('since')),
  until: timeOption('until', options.text('until')),
  actor: options.text('actor'),
});

/** How many of the newest entries are searched for actors. */
export const SEARCHED = 1_000;
const LISTED = 10;
const ALWAYS = ['system', 'operator'];

interface Acting {
  readonly actor: string;
  readonly actor_name: string | null;
}

/** @throws UsageError for an action that there is not. Call it for an empty answer. */
export function requireAction(action: string | undefined): void {
  if (action === undefined || AUDIT_ACTIONS.includes(action)) return;
  const meant = nearest(action, AUDIT_ACTIONS);
  throw new UsageError(
    `--type: there is no action ${action}${meant === undefined ? '' : `. Did you mean ${meant}?`}`,
  );
}

/** @throws CommandError when no actor of that name or id has acted. Call it for an empty answer. */
export async function requireActor(
  { session }: Pick<Call, 'session'>,
  actor: string | undefined,
  newest: () => Promise<readonly Acting[]>,
): Promise<void> {
  if (actor === undefined || ALWAYS.includes(actor) || actor === session.profile?.email) return;
  const found = await newest();
  const known = new Set(
    found.flatMap((each) => [each.actor_name, each.actor].filter((name) => name !== null)),
  );
  const wanted = actor.toLowerCase();
  if ([...known].some((each) => each.toLowerCase() === wanted)) return;
  const names = [...new Set(found.flatMap(({ actor_name }) => actor_name ?? []))];
  const meant = nearest(actor, [...names, ...ALWAYS]);
  const hint = meant === undefined ? '' : `. Did you mean ${meant}?`;
  const listed = names.slice(0, LISTED).join(', ');
  throw new CommandError(`--actor: there is no entry by ${actor}${hint}`, {
    next: listed === '' ? null : `--actor with one of ${listed}${names.length > LISTED ? ', …' : ''}`,
    exit_code: EXIT.not_found,
  });
}
