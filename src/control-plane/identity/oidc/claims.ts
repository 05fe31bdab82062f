/**
 * Reads what the OpenID provider's claims say about a person (OpenID Connect Core, section 5.1): subject, verified
 * address, name, groups. A malformed claim counts as absent. `wantedRoles` maps groups to roles. Pure.
 */
import type { OrgId } from '../../../shared/ids.ts';
import { ROLES, type Role } from '../../../shared/roles.ts';

export interface Claimed {
  /** Unique at the issuer, and never given to another person. */
  readonly subject: string;
  /** Null unless the provider has verified that the person owns the address. */
  readonly verified_email: string | null;
  readonly name: string;
  /** Null: the provider has not told them, because there are too many for its token. */
  readonly groups: readonly string[] | null;
  /** When the person last proved who they are, in seconds since the epoch. */
  readonly auth_time: number | null;
}

const EMAIL = /^[^\s@<>",;:\\]+@[^\s@<>",;:\\]+$/;
const EMAIL_LENGTH = 254;
const NAME_LENGTH = 100;
const SUBJECT_LENGTH = 255;
const MOST_GROUPS = 5_000;

type Claims = Readonly<Record<string, unknown>>;

/**
 * Microsoft Entra, in its worldwide cloud and in those of the United States' government and of China. Anywhere else `xms_edov`
 * is a claim like any other, which an administrator may let people fill in.
 */
const ENTRA =
  /^https:\/\/login\.(?:microsoftonline\.com|microsoftonline\.us|partner\.microsoftonline\.cn)\/[^/?#]+\/v2\.0$/;

/** @returns null without a valid subject */
export function readClaims(issuer: string, claims: Claims): Claimed | null {
  const { sub, auth_time } = claims;
  if (typeof sub !== 'string' || sub === '' || sub.length > SUBJECT_LENGTH) return null;
  return {
    subject: sub,
    verified_email: verifiedEmail(issuer, claims),
    name: nameOf(claims),
    groups: groupsOf(claims),
    auth_time: typeof auth_time === 'number' ? auth_time : null,
  };
}

/** `xms_edov` is what Entra has in place of `email_verified`: the owner of the address's domain is verified. */
function verifiedEmail(issuer: string, { email, email_verified, xms_edov }: Claims): string | null {
  const by_entra = ENTRA.test(issuer) && [true, 1, '1', 'true'].some((yes) => yes === xms_edov);
  const is_verified = email_verified === true || by_entra;
  if (!is_verified || typeof email !== 'string') return null;
  return email.length <= EMAIL_LENGTH && EMAIL.test(email) ? email : null;
}

function nameOf({ name, preferred_username }: Claims): string {
  const given = [name, preferred_username].find((each) => typeof each === 'string' && each.trim() !== '');
  // As names of the API: a joiner belongs to the character before it.
  const printable = (String(given ?? '').match(/[^\p{C}\p{Zl}\p{Zp}][\u200c\u200d]?/gu) ?? []).join('');
  return [...printable.trim()].slice(0, NAME_LENGTH).join('').trim();
}

/** A provider whose person is in no group may leave the claim out. */
function groupsOf({ groups, hasgroups, _claim_names }: Claims): readonly string[] | null {
  const elsewhere = typeof _claim_names === 'object' && _claim_names !== null && 'groups' in _claim_names;
  if (groups === undefined && (elsewhere || hasgroups === true || hasgroups === 'true')) return null;
  const all: unknown[] = Array.isArray(groups) ? groups : [groups];
  return all.filter((each) => typeof each === 'string').slice(0, MOST_GROUPS);
}

/** Of several roles in one organisation the strongest. */
export function wantedRoles(
  mapping: readonly { readonly group: string; readonly org_id: OrgId; readonly role: Role }[],
  groups: readonly string[],
): ReadonlyMap<OrgId, Role> {
  const has = new Set(groups);
  const wanted = new Map<OrgId, Role>();
  for (const { group, org_id, role } of mapping) {
    if (!has.has(group)) continue;
    const before = wanted.get(org_id);
    if (before === undefined || ROLES.indexOf(role) < ROLES.indexOf(before)) wanted.set(org_id, role);
  }
  return wanted;
}
