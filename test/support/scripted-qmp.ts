import type {
  CommandArguments,
  QmpClient,
  QmpCommandName,
  QmpReturn,
} from '../../src/host/qemu/qmp-client.ts';
import { only, type Parts } from './only.ts';

/** A monitor whose QEMU replies so: as with a real one, nobody checks the type of what it says. */
export function scriptedQmp(
  reply: (command: QmpCommandName, args: unknown) => unknown,
  more: Parts<Omit<QmpClient, 'execute'>> = {},
): QmpClient {
  async function execute<C extends QmpCommandName>(
    command: C,
    ...[args]: CommandArguments<C>
  ): Promise<QmpReturn<C>> {
    return (await reply(command, args)) as QmpReturn<C>;
  }
  return only<QmpClient>({ ...more, execute });
}
