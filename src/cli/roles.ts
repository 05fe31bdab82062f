/** The roles of members, as people type them. */
import type { Member } from '../../client/src/generated.ts';
import { nearest } from '../shared/nearest.ts';
import { UsageError } from './command-error.ts';

const ROLES: readonly Member['role'][] = ['owner', 'admin', 'member', 'billing'];

/** @param where the option or argument that has it @throws UsageError */
export function roleOf(where: string, text: string): Member['role'] {
  const role = ROLES.find((each) => each === text);
  if (role === undefined) {
    const meant = nearest(text, ROLES);
    const hint = meant === undefined ? '' : `. Did you mean ${meant}?`;
    throw new UsageError(
      `${where} takes ${ROLES.slice(0, -1).join(', ')} or ${ROLES.at(-1)}, not ${text}${hint}`,
    );
  }
  return role;
}
