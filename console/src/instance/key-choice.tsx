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
  /** The chosen keys. */
  readonly chosen?: readonly Offered[];
}

export function KeyChoice({ explicit, onChange, chosen = [] }: Props) {
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
          <span class="dim"> – also those added later, while the creator may change instances</span>
        </span>
      </label>
      <label>
        <input type="radio" name="key-mode" checked={explicit} onChange={() => onChange(true)} />
        <span>Only the keys chosen here</span>
      </label>
      {explicit && (
        <div class="choice-list">
          <Loaded query={own} lines={1}>
            {() =>
              offered.length === 0 && (
                <p class="dim">
                  Your account in {org.value?.name} has no keys. With none chosen, nobody can log in.
                </p>
              )
            }
          </Loaded>
          {offered.map(({ id, name, fingerprint }) => (
            <label key={id}>
              <input
                type="checkbox"
                name="key"
                value={id}
                defaultChecked={chosen.some((each) => each.id === id)}
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
