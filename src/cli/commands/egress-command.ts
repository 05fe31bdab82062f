/** berth egress: what an instance may reach, and what its VM was denied. */
import type { Berth, EgressMode, Instance } from '../../../client/src/berth.ts';
import { destinationText, entryFor, isListed } from '../../../client/src/egress-entries.ts';
import { changeCurrent } from '../change-current.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { collect } from '../reading.ts';
import { timeCell } from '../table.ts';

type Egress = Instance['egress'];

const MODES: readonly EgressMode[] = ['open', 'deny', 'allow'];

/** For people: what a mode means. */
export function egressWords({ mode, allow }: Egress): string {
  if (mode === 'open') return 'open: the public internet';
  if (mode === 'deny') return 'deny: nothing';
  return `allow: ${allow.length === 0 ? 'nothing yet' : allow.join(', ')}`;
}

async function show({ terminal }: Call, berth: Berth, { id, name, egress }: Instance): Promise<undefined> {
  const denied = await collect(berth.list('listDeniedEgress', { path: { id } }));
  if (terminal.format === 'json') return void terminal.json({ egress, denied });
  terminal.say(`Egress of ${name} is ${egressWords(egress)}`);
  terminal.list(denied, {
    headings: ['DENIED', 'ADDRESS', 'ATTEMPTS', 'LAST'],
    row: (each) => [
      destinationText(each),
      each.address ?? '-',
      { text: String(each.count), value: each.count },
      timeCell(each.at),
    ],
    quiet: destinationText,
    empty: 'Nothing was denied.',
  });
  // A name at a private address stays closed, so what the list has already is not offered again.
  const wanted = denied.find((each) => each.name !== undefined && !isListed(egress.allow, each));
  if (wanted !== undefined && egress.mode !== 'open')
    terminal.say(`To allow one: berth egress ${name} allow ${entryFor(wanted)}`);
  return undefined;
}

async function egress(call: Call): Promise<undefined> {
  const [text = '', action, ...hosts] = call.args;
  const berth = call.session.berth();
  const found = await berth.instances.find(text);
  if (action === undefined) return show(call, berth, found);
  if (action !== 'allow' && action !== 'remove') {
    const mode = MODES.find((each) => each === action);
    const hint = mode === undefined ? '' : `. To change the mode: berth set ${found.name} --egress ${mode}`;
    throw new UsageError(`after NAME comes allow or remove, not ${action}${hint}`);
  }
  if (hosts.length === 0) throw new UsageError(`HOST is missing: what to ${action}`);
  const now = await changeCurrent(
    berth,
    'getInstance',
    { path: { id: found.id } },
    ({ name, egress: { allow } }, if_match) => {
      const next = action === 'allow' ? [...allow, ...hosts] : without(name, allow, hosts);
      return berth.instances.change(found.id, { egress: { allow: next } }, { if_match });
    },
  );
  const said = hosts.join(', ');
  const sentence =
    action === 'allow' ? allowed(now, said) : `Removed ${said} from what ${now.name} may reach.`;
  call.terminal.done(sentence, now, now.id);
  return undefined;
}

function allowed({ name, egress: { mode } }: Instance, said: string): string {
  if (mode === 'allow') return `Allowed ${said} for ${name}.`;
  return `Allowed ${said} for ${name}; the egress mode is ${mode}, so the list does not apply yet. To apply it: berth set ${name} --egress allow`;
}

/** @throws CommandError for a host that is not on the list */
function without(name: string, allow: readonly string[], hosts: readonly string[]): string[] {
  const absent = hosts.filter((host) => !allow.includes(host.toLowerCase()));
  if (absent.length > 0) {
    const text = `${absent.join(', ')} is not on the list of ${name}`;
    throw new CommandError(text, { next: `berth egress ${name}`, exit_code: EXIT.not_found });
  }
  const gone = new Set(hosts.map((host) => host.toLowerCase()));
  return allow.filter((each) => !gone.has(each));
}

export const EGRESS: Command = {
  name: 'instance egress',
  short: ['egress'],
  args: ['NAME', '[allow|remove]', '[HOST…]'],
  fields: { 'egress.allow': 'HOST' },
  names_instances: true,
  summary: 'show what an instance may reach and what it was denied; allow or remove a host',
  details:
    'HOST is a name (example.com, *.example.com), an address or a network, with an optional :port. The list applies in the mode allow: berth set NAME --egress allow. Private addresses are closed in every mode.',
  example: 'berth egress web allow api.example.com',
  lists: true,
  run: egress,
};
