/** Lists the pages of the navigation in groups, and decides which pages the user sees there. */
import { leads, operates } from './live/membership.ts';
import type { IconName } from './ui/icon.tsx';

export interface NavigationPage {
  readonly at: string;
  readonly name: string;
  readonly icon: IconName;
  /** Whether the page is shown; absent: always. */
  readonly shown?: () => boolean;
}
export const NAVIGATION: readonly (readonly NavigationPage[])[] = [
  [
    { at: 'instances', name: 'Instances', icon: 'instances' },
    { at: 'usage', name: 'Usage', icon: 'chart' },
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
    // Last, because they appear only when the role is loaded, and so move nothing.
    { at: 'audit', name: 'Audit log', icon: 'audit', shown: leads },
    { at: 'operator', name: 'Operator', icon: 'server', shown: operates },
  ],
];

export function hrefOf({ at }: NavigationPage): string {
  return at === 'instances' ? '/' : `/${at}`;
}

export function isVisible({ shown }: NavigationPage): boolean {
  return shown?.() !== false;
}
