/** The way into a machine's ports: by its TAP device, or through QEMU's user network. */
import type { GuestNetwork } from '../network/guest-network.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import type { GuestPorts } from './guest-ports.ts';
import type { VmRecord } from './record.ts';
import { TapPorts } from './tap-ports.ts';
import { UserNetworkPorts } from './user-network-ports.ts';

interface MachineWithPorts {
  readonly qmp: Pick<QmpClient, 'execute'>;
  readonly record: VmRecord;
  update(change: Partial<VmRecord>): Promise<void>;
}

export function guestPortsOf(machine: MachineWithPorts, guest_network: GuestNetwork | null): GuestPorts {
  const { network } = machine.record;
  return network.kind === 'tap'
    ? new TapPorts(network.address, guest_network)
    : new UserNetworkPorts(machine);
}
