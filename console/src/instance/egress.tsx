/**
 * The Egress tab of an instance: changes its egress policy, lists the destinations that its VM was denied, and adds a
 * denied destination to the allow list. A change takes effect within seconds, also for open connections.
 *
 * The dialog that creates an instance uses `EgressFields` and `readEgress` too.
 */
import { useEffect } from 'preact/hooks';
import type { DeniedDestination, EgressMode, Instance } from '../../../client/src/berth.ts';
import { destinationText, entryFor, isListed } from '../../../client/src/egress-entries.ts';
import { call } from '../api.ts';
import { putInstance } from '../live/instances.ts';
import { listen } from '../live/streams.ts';
import { Select, TextArea } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Table } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useQuery } from '../use-query.ts';
import { whyFixed } from './actions.tsx';
import { NEW_DEFAULTS } from './as-commands.ts';
import { changeNow, useInstanceForm } from './change-instance.ts';

interface Props {
  readonly instance: Instance;
}

export function EgressPanel({ instance }: Props) {
  return (
    <>
      <Section
        title="Egress"
        lead="What the VM may reach. The host enforces it, outside of the guest. Private addresses are closed in every mode."
      >
        <Policy instance={instance} />
      </Section>
      <Denied instance={instance} />
    </>
  );
}

function Policy({ instance }: Props) {
  const { shown, onEdited, change } = useInstanceForm(instance);
  const save = async (form: FormData, element: HTMLFormElement) => {
    putInstance(await change({ egress: readEgress(form) }));
    // Saved values are no longer edits: from now on the fields follow the live state.
    element.reset();
    tell('good', 'Saved.');
  };
  return (
    <Form
      class="panel stack"
      verb="Save"
      primary
      reason={whyFixed(instance)}
      edits
      onEdited={onEdited}
      work={save}
    >
      <EgressFields of={shown.egress} />
    </Form>
  );
}

interface Row extends DeniedDestination {
  readonly id: string;
}

function Denied({ instance }: Props) {
  const { id } = instance;
  const query = useQuery(`denied ${id}`, () => call('listDeniedEgress', { path: { id } }));
  const { reload } = query;
  useEffect(
    () =>
      listen(
        (message) => void (message.kind === 'event' && message.event.type === 'egress.denied' && reload()),
      ),
    [reload],
  );
  const listed = (row: Row) => isListed(instance.egress.allow, row);
  const allow = async (row: Row) => {
    const host = entryFor(row);
    const changed = await changeNow(id, ({ egress: { allow } }) => ({
      egress: { allow: allow.includes(host) ? allow : [...allow, host] },
    }));
    putInstance(changed);
    tell(
      'good',
      changed.egress.mode === 'allow'
        ? `Allowed ${host}.`
        : `Added ${host} to the list, which applies in mode allow.`,
    );
  };
  return (
    <Section title="Denied" lead="The last 100 destinations that the VM was denied.">
      <Loaded query={query}>
        {({ data }) =>
          data.length === 0 ? (
            <p class="panel dim">Nothing was denied.</p>
          ) : (
            <Table
              rows={data.map((each) => ({ ...each, id: `${each.name}-${each.address}-${each.port}` }))}
              columns={[
                {
                  head: 'Destination',
                  class: 'wrap',
                  cell: (row) => (
                    <>
                      <code>{destinationText(row)}</code>{' '}
                      {listed(row) && (
                        <span class="tag" id={`listed-${row.id}`}>
                          in the list
                        </span>
                      )}
                    </>
                  ),
                },
                { head: 'Address', below: true, cell: ({ address }) => address ?? 'The look-up was denied' },
                { head: 'Attempts', class: 'number', below: true, cell: ({ count }) => count },
                { head: 'Last', class: 'nowrap', below: true, cell: ({ at }) => <Time at={at} /> },
              ]}
              actions={
                whyFixed(instance)
                  ? []
                  : [
                      {
                        name: 'Allow',
                        about: (row) => `Allow ${entryFor(row)}`,
                        reasonId: (row) => (listed(row) ? `listed-${row.id}` : undefined),
                        work: allow,
                      },
                    ]
              }
              onDone={reload}
            />
          )
        }
      </Loaded>
    </Section>
  );
}

type Egress = Instance['egress'];

const MODES: readonly (readonly [EgressMode, string])[] = [
  ['open', 'open: the public internet'],
  ['deny', 'deny: nothing'],
  ['allow', 'allow: only what the list allows'],
];

/** The fields of an egress policy, for new and existing instances. */
export function EgressFields({ of = NEW_DEFAULTS.egress }: { readonly of?: Egress }) {
  return (
    <>
      <Select label="What the VM may reach" name="mode" defaultValue={of.mode}>
        {MODES.map(([mode, words]) => (
          <option key={mode} value={mode}>
            {words}
          </option>
        ))}
      </Select>
      <TextArea
        label="Allowed hosts"
        name="allow"
        rows={Math.min(12, Math.max(3, of.allow.length + 1))}
        spellcheck={false}
        defaultValue={of.allow.join('\n')}
        hint="One a line: example.com, *.example.com, 203.0.113.0/24, each with an optional :port. A name without a port means 80 and 443. The list applies in mode allow."
      />
    </>
  );
}

export function readEgress(form: FormData): Egress {
  const allow = String(form.get('allow'))
    .split(/[\s,]+/)
    .filter((each) => each !== '');
  return { mode: String(form.get('mode')) as EgressMode, allow };
}
