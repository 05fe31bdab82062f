/** The pages of the navigation, in its groups. */
import { leads } from './live/membership.ts';
import type { IconName } from './ui/icon.tsx';

export interface Place {
  readonly at: string;
  readonly name: string;
  readonly icon: IconName;
  readonly leads_only?: boolean;
}
export const PLACES: readonly (readonly Place[])[] = [
  [
    { at: 'instances', name: 'Instances', icon: 'instances' },
    { at: 'ssh-keys', name: 'SSH keys', icon: 'key' },
  ],
  [
    { at: 'api-keys', name: 'API keys', icon: 'code' },
    { at: 'webhooks', name: 'Webhooks', icon: 'webhook' },
    { at: 'notifications', name: 'Notifications', icon: 'bell' },
  ],
  [
    { at: 'organisation', name: 'Organisation', icon: 'people' },
    { at: 'account', name: 'Account', icon: 'person' },
    // Last, because it appears only when the role is loaded, and so moves nothing.
    { at: 'audit', name: 'Audit log', icon: 'audit', leads_only: true },
  ],
];

export function hrefOf({ at }: Place): string {
  return at === 'instances' ? '/' : `/${at}`;
}

export function isVisible({ leads_only }: Place): boolean {
  return leads_only !== true || leads();
}
