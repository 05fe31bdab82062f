/** The SSH keys that an instance accepts: all current keys of its creator's account, or a fixed choice. */
import type { KeySetKey } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { org } from '../live/membership.ts';
import { Loaded } from '../ui/page.tsx';
import { useQuery } from '../use-query.ts';

type Offered = Pick<KeySetKey, 'id' | 'name' | 'fingerprint'>;

interface Props {
  readonly explicit: boolean;
  readonly onChange: (explicit: boolean) => void;
  /** The keys that are chosen at first. */
  readonly chosen?: readonly Offered[];
  /** The ids of the boxes that are checked, after each change. */
  readonly onChosen?: (ids: readonly string[]) => void;
}

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
