/** The roles of members, as people type them. */
import type { Member } from '../../client/src/generated.ts';
import { nearest } from '../lib/nearest.ts';
import { UsageError } from './command-error.ts';

const ROLES: readonly Member['role'][] = ['owner', 'admin', 'member', 'billing'];

/** @throws UsageError */
export function roleOf(text: string): Member['role'] {
  const role = ROLES.find((each) => each === text);
  if (role === undefined) {
    const meant = nearest(text, ROLES);
    const hint = meant === undefined ? '' : `. Did you mean ${meant}?`;
    throw new UsageError(`a role is one of ${ROLES.join(', ')}, not ${text}${hint}`);
  }
  return role;
}
