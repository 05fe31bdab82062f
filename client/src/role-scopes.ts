/** A role's rights as the scope of a key. The server makes no key with more than its creator's rights (docs/permissions.md). */
import type { Member } from './generated.ts';

const ANY = [
  'instances:read vm:read webhooks:read org:read',
  'ssh_keys:read ssh_keys:write notifications:read notifications:write api_keys:read api_keys:write',
].join(' ');

const SCOPES: Readonly<Record<Member['role'], string>> = {
  owner: '*',
  admin: '*',
  member: `${ANY} instances:write vm:write`,
  billing: `${ANY} org:write`,
};

export function scopeOfRole(role: Member['role']): string {
  return SCOPES[role];
}
