/** What an instance may reach, and what its VM was denied. A change takes effect within seconds, also for open connections. */
import { useEffect } from 'preact/hooks';
import type { DeniedDestination, EgressMode, Instance } from '../../../client/src/berth.ts';
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
import { whyFixed } from './actions.ts';

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

const MODES: readonly (readonly [EgressMode, string])[] = [
  ['open', 'open: the public internet'],
  ['deny', 'deny: nothing'],
  ['allow', 'allow: only what the list allows'],
];

function Policy({ instance }: Props) {
  const { id, egress } = instance;
  const save = async (form: FormData, element: HTMLFormElement) => {
    const allow = String(form.get('egress.allow'))
      .split(/[\s,]+/)
      .filter((each) => each !== '');
    const mode = String(form.get('egress.mode')) as EgressMode;
    putInstance(await call('changeInstance', { path: { id }, body: { egress: { mode, allow } } }));
    // Saved values are no longer edits: from now on the fields follow the live state.
    element.reset();
    tell('good', 'Saved.');
  };
  return (
    <Form class="panel stack" verb="Save" primary reason={whyFixed(instance)} work={save}>
      {() => (
        <>
          <Select label="Mode" name="egress.mode">
            {MODES.map(([mode, words]) => (
              <option key={mode} value={mode} selected={mode === egress.mode}>
                {words}
              </option>
            ))}
          </Select>
          <TextArea
            label="Allowed hosts"
            name="egress.allow"
            rows={Math.min(12, Math.max(3, egress.allow.length + 1))}
            spellcheck={false}
            defaultValue={egress.allow.join('\n')}
            hint="One a line: example.com, *.example.com, 203.0.113.0/24, each with an optional :port. A name without a port means 80 and 443. The list applies in mode allow."
          />
        </>
      )}
    </Form>
  );
}

interface Row extends DeniedDestination {
  readonly id: string;
}

function Denied({ instance }: Props) {
  const { id, egress } = instance;
  const query = useQuery(`denied ${id}`, () => call('listDeniedEgress', { path: { id } }));
  const { reload } = query;
  useEffect(
    () =>
      listen(
        (message) => void (message.kind === 'event' && message.event.type === 'egress.denied' && reload()),
      ),
    [reload],
  );
  const allow = async (row: Row) => {
    const host = hostOf(row);
    putInstance(
      await call('changeInstance', { path: { id }, body: { egress: { allow: [...egress.allow, host] } } }),
    );
    tell(
      'good',
      egress.mode === 'allow'
        ? `Allowed ${host}.`
        : `Added ${host} to the list, which applies in mode allow.`,
    );
  };
  return (
    <Section title="Denied" lead="The last 100 destinations that the VM was denied.">
      <Loaded query={query}>
        {({ data }) =>
          data.length === 0 ? (
            <p class="notice">Nothing was denied.</p>
          ) : (
            <Table
              rows={data.map((each) => ({ ...each, id: `${each.name} ${each.address} ${each.port}` }))}
              columns={[
                { head: 'Destination', class: 'wrap', cell: (row) => <code>{destinationOf(row)}</code> },
                { head: 'Address', class: 'wide-only', cell: ({ address }) => address ?? 'look-up' },
                { head: 'Attempts', class: 'number', cell: ({ count }) => count },
                { head: 'Last', class: 'wide-only', cell: ({ at }) => <Time at={at} /> },
              ]}
              actions={
                whyFixed(instance)
                  ? []
                  : [{ name: 'Allow', about: (row) => `Allow ${hostOf(row)}`, work: allow }]
              }
              onDone={reload}
            />
          )
        }
      </Loaded>
    </Section>
  );
}

/** The entry that allows it. */
function hostOf({ name, address, port }: DeniedDestination): string {
  const host = name ?? address ?? '';
  const is_usual = name !== undefined && (port === undefined || port === 80 || port === 443);
  if (is_usual || port === undefined) return host;
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}

function destinationOf({ name, address, port }: DeniedDestination): string {
  const host = name ?? address ?? '';
  return port === undefined ? host : host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
}
