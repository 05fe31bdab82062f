/** The event types of webhooks (docs/webhooks.md). Typed by the API: an unknown one does not compile. */
import type { EventType } from '../../../client/src/berth.ts';

export const EVENT_GROUPS: readonly { readonly name: string; readonly types: readonly EventType[] }[] = [
  {
    name: 'Instances',
    types: [
      'instance.created',
      'instance.deleted',
      'instance.forked',
      'instance.restored',
      'instance.ssh_keys_replaced',
    ],
  },
  {
    name: 'VMs',
    types: ['vm.started', 'vm.stopped', 'vm.suspended', 'vm.restarted', 'vm.failed', 'vm.recovered'],
  },
  { name: 'Egress', types: ['egress.denied'] },
  { name: 'Disks', types: ['disk.flushed', 'disk.flush_failed'] },
  { name: 'HTTP ports', types: ['port.created', 'port.changed', 'port.deleted'] },
  {
    name: 'Keys',
    types: ['ssh_key.added', 'ssh_key.revoked', 'api_key.created', 'api_key.rotated', 'api_key.revoked'],
  },
  {
    name: 'Organisation',
    types: ['member.added', 'member.removed', 'member.role_changed', 'webhook.disabled'],
  },
];
