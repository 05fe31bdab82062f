/** Suggests the instance that a mistyped name probably meant. */
import { BerthError } from '../../client/src/berth.ts';
import { nearest } from '../shared/nearest.ts';
import type { Command } from './command.ts';
import { collect } from './reading.ts';
import type { Session } from './session.ts';

const MOST_INSTANCES = 1_000;
const ASK_MS = 2_000;

/** As the client says it. */
const UNKNOWN_NAME = /^There is no instance called (\S+)\.$/;

/** @returns undefined when the error is another one, no name is near, or the server does not list them soon */
export async function suggestInstance(
  error: unknown,
  command: Command,
  session: Session,
): Promise<string | undefined> {
  if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') return undefined;
  const name = UNKNOWN_NAME.exec(error.message)?.[1];
  if (name === undefined || command.on_server === true) return undefined;
  try {
    const signal = AbortSignal.timeout(ASK_MS);
    const instances = await collect(
      session.berth().instances.list({ limit: 200 }, { signal }),
      MOST_INSTANCES,
    );
    return nearest(
      name,
      instances.map((each) => each.name),
    );
  } catch {
    return undefined;
  }
}
