/**
 * The Keys tab of an instance: the SSH keys that it accepts. These are all keys of its creator's account, or a fixed
 * choice. The dialog that creates an instance uses the same fields (`KeyChoice`).
 */
import { useEffect, useState } from 'preact/hooks';
import type { Instance, KeySet } from '../../../client/src/berth.ts';
import type { KeySetKey } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { org } from '../live/membership.ts';
import { type LiveMessage, listen } from '../live/streams.ts';
import { Form } from '../ui/form.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Table } from '../ui/table.tsx';
import { tell } from '../ui/toasts.tsx';
import { readThenChange } from '../use-action.ts';
import { useQuery } from '../use-query.ts';
import { whyFixed } from './actions.tsx';

/** The SSH keys that an instance accepts. A change takes effect at once, also for open connections. */
export function KeySetPanel({ instance }: { readonly instance: Instance }) {
  const { id } = instance;
  const query = useQuery(`key-set ${id}`, () => call('getKeySet', { path: { id } }));
  const { reload } = query;
  useEffect(() => listen((message) => void (changesKeys(message, id) && reload())), [reload, id]);
  return (
    <Section
      title="Keys"
      lead="The SSH keys that this instance accepts. Connections of a removed key are closed within seconds."
    >
      <Loaded query={query}>{(keys) => <Edit instance={instance} keys={keys} onSaved={query.put} />}</Loaded>
    </Section>
  );
}

function changesKeys(message: LiveMessage, id: string): boolean {
  if (message.kind !== 'event') return message.kind === 'reset';
  const { type, data } = message.event;
  if (type === 'instance.ssh_keys_replaced') return (data['instance'] as Instance | undefined)?.id === id;
  return type === 'ssh_key.added' || type === 'ssh_key.revoked' || type === 'member.removed';
}

const idsOf = ({ mode, data }: KeySet) => [mode, ...data.map(({ id }) => id).toSorted()].join(' ');

interface EditProps {
  readonly instance: Instance;
  readonly keys: KeySet;
  readonly onSaved: (keys: KeySet) => void;
}

function Edit({ instance, keys, onSaved }: EditProps) {
  const [explicit, setExplicit] = useState(keys.mode === 'explicit');
  useEffect(() => setExplicit(keys.mode === 'explicit'), [keys.mode]);
  /** Null: the boxes were not touched. */
  const [chosen, setChosen] = useState<readonly string[] | null>(null);
  const accepted = keys.mode === 'explicit' ? keys.data.map(({ id }) => id) : [];
  const wanted = chosen ?? accepted;
  const is_same =
    explicit === (keys.mode === 'explicit') &&
    (!explicit || wanted.toSorted().join() === accepted.toSorted().join());
  const replace = async (form: FormData, element: HTMLFormElement) => {
    const body = explicit ? { ssh_key_ids: chosenKeys(form) } : ({ mode: 'account' } as const);
    const path = { id: instance.id };
    const saved = await readThenChange(
      (options) => call('getKeySet', { path }, options),
      (now, options) => {
        if (idsOf(now) !== idsOf(keys)) {
          onSaved(now);
          throw new Error(
            'Not replaced: somebody else has just changed the key set. Check it, then replace it again.',
          );
        }
        return call('replaceKeySet', { path, body }, options);
      },
    );
    onSaved(saved);
    // Saved values are no longer edits: from now on the boxes follow the live state.
    element.reset();
    setChosen(null);
    tell('good', 'Replaced the key set.');
  };
  return (
    <div class="stack">
      {keys.data.length === 0 ? (
        <p class="notice">Nobody can log in: no key is accepted.</p>
      ) : (
        <Table
          rows={keys.data}
          columns={[
            { head: 'Accepted now', cell: ({ name }) => name },
            { head: 'Type', class: 'wide-only', cell: ({ type }) => type },
            { head: 'Fingerprint', cell: (key) => <code class="wrap">{key.fingerprint}</code> },
          ]}
        />
      )}
      <Form
        class="panel stack"
        verb="Replace the key set"
        primary
        reason={whyFixed(instance) ?? (is_same ? 'Nothing is changed yet.' : undefined)}
        work={replace}
      >
        <KeyChoice
          explicit={explicit}
          onChange={(next) => {
            setExplicit(next);
            setChosen(null);
          }}
          onChosen={setChosen}
          chosen={keys.mode === 'explicit' ? keys.data : []}
        />
      </Form>
    </div>
  );
}

type Offered = Pick<KeySetKey, 'id' | 'name' | 'fingerprint'>;

interface Props {
  readonly explicit: boolean;
  readonly onChange: (explicit: boolean) => void;
  /** The keys that are chosen at first. */
  readonly chosen?: readonly Offered[];
  /** The ids of the boxes that are checked, after each change. */
  readonly onChosen?: (ids: readonly string[]) => void;
}

/** The SSH keys that an instance accepts: all current keys of its creator's account, or a fixed choice. */
export function KeyChoice({ explicit, onChange, chosen = [], onChosen }: Props) {
  const own = useQuery('key-choice', () => call('listSshKeys', { query: { limit: 200 } }));
  // Also keys of other members, if the instance already accepts them.
  const usable = (own.data?.data ?? []).filter(({ org_id }) => org_id === null || org_id === org.value?.id);
  const offered: Offered[] = [...usable];
  offered.push(...chosen.filter((each) => !offered.some(({ id }) => id === each.id)));
  return (
    <fieldset class="choice">
      <legend>Who may log in by SSH</legend>
      <label>
        <input type="radio" name="key-mode" checked={!explicit} onChange={() => onChange(false)} />
        <span>
          All keys of its creator’s account
          <span class="dim"> – also those added later, as long as the creator may change instances</span>
        </span>
      </label>
      <label>
        <input type="radio" name="key-mode" checked={explicit} onChange={() => onChange(true)} />
        <span>
          Only the keys chosen here<span class="dim"> – with none chosen, no login is possible</span>
        </span>
      </label>
      {explicit && (
        <div class="choice-list">
          <Loaded query={own} lines={1}>
            {() => offered.length === 0 && <p class="dim">Your account in {org.value?.name} has no keys.</p>}
          </Loaded>
          {offered.map(({ id, name, fingerprint }) => (
            <label key={id}>
              <input
                type="checkbox"
                name="key"
                value={id}
                defaultChecked={chosen.some((each) => each.id === id)}
                onChange={({ currentTarget: { form } }) => form && onChosen?.(chosenKeys(new FormData(form)))}
              />
              <span>
                {name} <code class="dim">{fingerprint.slice(0, 23)}…</code>
              </span>
            </label>
          ))}
        </div>
      )}
    </fieldset>
  );
}

export function chosenKeys(form: FormData): string[] {
  return form.getAll('key').map(String);
}
