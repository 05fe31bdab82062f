/** The values of the settings of OpenID Connect. Pure. */
import { isId, type OrgId } from '../shared/ids.ts';
import { isLoopback } from '../shared/loopback.ts';
import { ROLES, type Role } from '../shared/roles.ts';
import { Expected } from './settings.ts';

/** Members of the group have the role in the organisation. */
export interface GroupRole {
  readonly group: string;
  readonly org_id: OrgId;
  readonly role: Role;
}

export interface OidcConfig {
  /** Without a trailing slash. */
  readonly issuer: string;
  readonly client_id: string;
  readonly client_secret: string;
  readonly groups: readonly GroupRole[];
}

const MOST_GROUPS = 1_000;

export function parseIssuer(text: string): string {
  const url = URL.parse(text);
  const host = url?.hostname.replace(/^\[|\]$/g, '') ?? '';
  const is_safe = url?.protocol === 'https:' || (url?.protocol === 'http:' && isLoopback(host));
  if (!is_safe || url === null || url.search + url.hash + url.username !== '' || /\s|#|\?/.test(text)) {
    throw new Expected(
      "the provider's issuer such as https://id.example.org/realms/main, over https, without query (http only on the loopback)",
    );
  }
  return text.replace(/\/$/, '');
}

/** `group=org_…:role, …`. A group's name may contain everything but a comma. */
export function parseGroups(text: string): readonly GroupRole[] {
  const parts = text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '');
  if (parts.length > MOST_GROUPS) throw new Expected(`at most ${MOST_GROUPS} groups`);
  return parts.map(groupRole);
}

function groupRole(text: string): GroupRole {
  const [, group = '', org_id = '', given = ''] = /^(.+)=(org_[^:=]*):([a-z]+)$/.exec(text) ?? [];
  const role = ROLES.find((each) => each === given);
  if (group === '' || role === undefined || !isId('org', org_id)) {
    throw new Expected(
      `GROUP=ORGANISATION:ROLE separated by commas, such as staff=org_01k5x8m2vq7r4t9wz3b6c8d0ef:member; the roles are ${ROLES.join(', ')}, and berth org quota lists the ids`,
    );
  }
  return { group, org_id, role };
}
