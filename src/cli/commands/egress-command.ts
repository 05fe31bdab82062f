/** berth egress: what an instance may reach, and what its VM was denied. */
import type { Berth, DeniedDestination, Instance } from '../../../client/src/berth.ts';
import type { Call, Command } from '../command.ts';
import { UsageError } from '../command-error.ts';
import { timeCell } from '../format.ts';
import { collect } from '../reading.ts';

type Egress = Instance['egress'];

/** For people: what a mode means. */
export function egressWords({ mode, allow }: Egress): string {
  if (mode === 'open') return 'open: the public internet';
  if (mode === 'deny') return 'deny: nothing';
  return `allow: ${allow.length === 0 ? 'nothing yet' : allow.join(', ')}`;
}

function destinationOf({ name, address, port }: DeniedDestination): string {
  const to = name ?? address ?? '';
  if (port === undefined) return to;
  return to.includes(':') ? `[${to}]:${port}` : `${to}:${port}`;
}

async function show({ terminal }: Call, berth: Berth, { id, name, egress }: Instance): Promise<undefined> {
  const denied = await collect(berth.list('listDeniedEgress', { path: { id } }));
  if (terminal.format === 'json') return void terminal.json({ egress, denied });
  terminal.say(`Egress of ${name} is ${egressWords(egress)}`);
  terminal.list(denied, {
    headings: ['DENIED', 'ADDRESS', 'ATTEMPTS', 'LAST'],
    row: (each) => [
      destinationOf(each),
      each.address ?? '-',
      { text: String(each.count), value: each.count },
      timeCell(each.at),
    ],
    quiet: destinationOf,
    empty: 'Nothing was denied.',
  });
  const wanted = denied.find((each) => each.name !== undefined);
  if (wanted?.name !== undefined) terminal.say(`To allow one: berth egress ${name} allow ${wanted.name}`);
  return undefined;
}

async function egress(call: Call): Promise<undefined> {
  const [text = '', action, ...hosts] = call.args;
  const berth = call.session.berth();
  const found = await berth.instances.find(text);
  if (action === undefined) return show(call, berth, found);
  if (action !== 'allow' && action !== 'remove') {
    throw new UsageError(`after NAME comes allow or remove, not ${action}`);
  }
  if (hosts.length === 0) throw new UsageError(`berth egress ${found.name} ${action} needs a HOST`);
  const said = hosts.join(', ');
  const { name } = found;
  if (action === 'allow') {
    const now = await berth.instances.change(found.id, {
      egress: { allow: [...found.egress.allow, ...hosts] },
    });
    const later = `the egress mode is ${now.egress.mode}, so the list does not apply yet. To apply it: berth set ${name} --egress allow`;
    call.terminal.done(
      `Allowed ${said} for ${name}${now.egress.mode === 'allow' ? '.' : `; ${later}`}`,
      now,
      now.id,
    );
    return undefined;
  }
  const wanted = new Set(hosts.map((host) => host.toLowerCase()));
  const absent = hosts.filter((host) => !found.egress.allow.includes(host.toLowerCase()));
  if (absent.length > 0)
    throw new UsageError(`${name} does not allow ${absent.join(', ')}. Its list: berth egress ${name}`);
  const allow = found.egress.allow.filter((each) => !wanted.has(each));
  const now = await berth.instances.change(found.id, { egress: { allow } });
  call.terminal.done(`Removed ${said} from what ${name} may reach.`, now, now.id);
  return undefined;
}

export const EGRESS: Command = {
  name: 'instance egress',
  short: ['egress'],
  args: ['NAME', '[allow|remove]', '[HOST…]'],
  names_instances: true,
  summary: 'show what an instance may reach and what it was denied; allow or remove a host',
  details:
    'HOST is a name (example.com, *.example.com), an address or a network, with an optional :port. The list applies in the mode allow: berth set NAME --egress allow. Private addresses are closed in every mode.',
  example: 'berth egress web allow api.example.com',
  lists: true,
  run: egress,
};
