/** The SSH keys that an instance lets in. A change holds at once, for live connections too. */
import { useEffect, useState } from 'preact/hooks';
import type { Instance, KeySet } from '../../../client/src/berth.ts';
import { call } from '../api.ts';
import { works } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';
import { chosenKeys, KeyChoice } from './key-choice.tsx';

export function KeySetPanel({ instance }: { readonly instance: Instance }) {
  const { id } = instance;
  const query = useQuery(`key-set ${id}`, () => call('getKeySet', { path: { id } }));
  return (
    <Section title="Keys" lead="Live connections of a key that is taken away are closed within seconds.">
      <Loaded query={query}>{(keys) => <Edit instance={instance} keys={keys} onSaved={query.put} />}</Loaded>
    </Section>
  );
}

interface EditProps {
  readonly instance: Instance;
  readonly keys: KeySet;
  readonly onSaved: (keys: KeySet) => void;
}

function Edit({ instance, keys, onSaved }: EditProps) {
  const [explicit, setExplicit] = useState(keys.mode === 'explicit');
  useEffect(() => setExplicit(keys.mode === 'explicit'), [keys.mode]);
  const action = useAction(async (form: FormData) => {
    const body = explicit ? { ssh_key_ids: chosenKeys(form) } : ({ mode: 'account' } as const);
    onSaved(await call('replaceKeySet', { path: { id: instance.id }, body }));
    tell('good', 'The key set is replaced.');
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(new FormData(event.currentTarget as HTMLFormElement));
  };
  return (
    <div class="stack">
      {keys.data.length === 0 ? (
        <p class="notice">Nobody can log in: no key is let in.</p>
      ) : (
        <table class="table">
          <thead>
            <tr>
              <th>Let in now</th>
              <th class="wide-only">Type</th>
              <th>Fingerprint</th>
            </tr>
          </thead>
          <tbody>
            {keys.data.map(({ id, name, type, fingerprint }) => (
              <tr key={id}>
                <td>{name}</td>
                <td class="wide-only">{type}</td>
                <td>
                  <code class="wrap">{fingerprint}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <form class="panel stack" onSubmit={submit}>
        <KeyChoice
          explicit={explicit}
          onChange={setExplicit}
          chosen={keys.mode === 'explicit' ? keys.data : []}
        />
        <Failure text={action.error} />
        <div>
          <Button submit kind="primary" busy={action.busy} disabled={!works() || instance.deleting}>
            Replace the key set
          </Button>
        </div>
      </form>
    </div>
  );
}
