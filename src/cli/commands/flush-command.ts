/** `berth flush`: saves what the guest has written, and names or pins the generation. */
import type { Berth, FlushReceipt, Generation, Instance } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { bytes, duration } from '../format.ts';
import { watched } from '../waiting.ts';

async function flush(call: Call): Promise<undefined> {
  const { args, session, terminal, signal, options } = call;
  const berth = session.berth();
  const instance = await berth.instances.find(args[0] ?? '');
  const { id, name } = instance;
  const look = `berth show ${name}`;
  const receipt = await watched(call, `flushing ${name}`, 'the server goes on flushing', look, () =>
    berth.instances.flushVm(id, { signal }),
  );
  const [wanted, pinned] = [options.text('name'), options.flag('pin')];
  const marks = wanted !== undefined || pinned;
  const kept = marks ? await mark(berth, instance, receipt, { name: wanted, pinned }) : null;
  const { generation } = receipt;
  terminal.done(
    `${name}: ${savedBy(receipt)}${wanted === undefined ? '' : `, named ${wanted}`}${pinned ? ', pinned' : ''}`,
    kept === null ? receipt : { ...receipt, name: kept.name, pinned: kept.pinned },
    String(generation),
  );
}

function savedBy({
  generation,
  dirty_bytes,
  uploaded_bytes,
  duration_ms,
  consistency,
}: FlushReceipt): string {
  if (generation === 0) return 'nothing to save yet';
  return dirty_bytes === 0
    ? `all saved already, as generation ${generation}`
    : `${bytes(dirty_bytes)} saved as generation ${generation}, ${bytes(uploaded_bytes)} uploaded in ${duration(duration_ms)}, consistency ${consistency}`;
}

interface Marks {
  readonly name: string | undefined;
  readonly pinned: boolean;
}

/** A flush with nothing to save makes no generation. Then the name goes to the current one, unless that has another name. */
async function mark(
  berth: Berth,
  { id, name: instance }: Instance,
  { generation, dirty_bytes }: FlushReceipt,
  { name, pinned }: Marks,
): Promise<Generation> {
  if (generation === 0)
    throw new CommandError(`${instance} has written nothing yet, so there is no generation to name or pin`, {
      next: `berth start ${instance}`,
      exit_code: EXIT.state,
    });
  if (dirty_bytes === 0 && name !== undefined) {
    const { data } = await berth.call('listGenerations', { path: { id }, query: { limit: 1 } });
    const current = data[0]?.name ?? null;
    if (current !== null && current !== name)
      throw new CommandError(`all saved already, as generation ${generation}, which is named ${current}`, {
        next: `berth generation name ${instance} ${generation} TEXT`,
        exit_code: EXIT.state,
      });
  }
  const body = { ...(name === undefined ? {} : { name }), ...(pinned ? { pinned: true } : {}) };
  return berth.call('changeGeneration', { path: { id, generation: String(generation) }, body });
}

export const FLUSH: Command = {
  name: 'vm flush',
  short: ['flush'],
  args: ['NAME'],
  names_instances: true,
  summary: 'save what the guest has written as a new generation, and print the receipt',
  details: 'After Ctrl-C the server continues.',
  example: 'berth flush web --name before-upgrade --pin',
  options: {
    name: { type: 'string', value: 'TEXT', help: 'a name for the generation' },
    pin: { type: 'boolean', field: 'pinned', help: 'keep the generation, however old it gets' },
  },
  run: flush,
};
