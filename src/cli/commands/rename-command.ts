/** `berth rename`: what `berth set NAME --name NEW-NAME` does, as its own verb. */
import type { Command } from '../command.ts';
import { instanceName } from '../numbers.ts';

export const RENAME: Command = {
  name: 'instance rename',
  short: ['rename'],
  args: ['NAME', 'NEW-NAME'],
  fields: { name: 'NEW-NAME' },
  names_instances: true,
  summary: 'give an instance a new name',
  example: 'berth rename web www',
  run: async ({ args, session, terminal }) => {
    const new_name = instanceName(args[1] ?? '');
    const berth = session.berth();
    const { id, name } = await berth.instances.find(args[0] ?? '');
    if (name === new_name) {
      const same = await berth.instances.get(id);
      return void terminal.done(`${name} is its name already: nothing changed.`, same, id);
    }
    const renamed = await berth.instances.change(id, { name: new_name });
    terminal.done(`Renamed ${name} to ${new_name}.`, renamed, id);
    return undefined;
  },
};
