/** The roles of members, the strongest first. */
export const ROLES = ['owner', 'admin', 'member', 'billing'] as const;
export type Role = (typeof ROLES)[number];
