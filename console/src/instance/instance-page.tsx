/** The page of one instance: its state, its actions, the receipt of its last flush, and a tab for each part. */
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Instance } from '../../../client/src/berth.ts';
import { mebibytes, plural } from '../format.ts';
import { instances, instances_error, refreshSoon } from '../live/instances.ts';
import { works } from '../live/membership.ts';
import { Button } from '../ui/button.tsx';
import { useWidth } from '../ui/chart.tsx';
import { Icon } from '../ui/icon.tsx';
import { Loaded, NotFoundPage } from '../ui/page.tsx';
import { ActionButtons } from './actions.tsx';
import { Activity } from './activity.tsx';
import { EgressPanel } from './egress.tsx';
import { ForkDialog } from './fork-dialog.tsx';
import { Generations } from './generations.tsx';
import { InstanceSettings } from './instance-settings.tsx';
import { Overview } from './overview.tsx';
import { OpenPort, PortsPanel } from './ports.tsx';
import { Receipt } from './receipt.tsx';
import { SecretsPanel } from './secrets.tsx';
import { KeySetPanel } from './ssh-keys.tsx';
import { Labels, StateBadge } from './state.tsx';
import { TerminalPanel } from './terminal.tsx';

const TABS = {
  overview: { name: 'Overview', Panel: Overview },
  generations: { name: 'Generations', Panel: Generations },
  ports: { name: 'Ports', Panel: PortsPanel },
  terminal: { name: 'Terminal', Panel: TerminalPanel },
  keys: { name: 'Keys', Panel: KeySetPanel },
  egress: { name: 'Egress', Panel: EgressPanel },
  secrets: { name: 'Secrets', Panel: SecretsPanel },
  activity: { name: 'Activity', Panel: Activity },
  settings: { name: 'Settings', Panel: InstanceSettings },
} as const;
/** Reasons that add to the state of a healthy VM (docs/errors.md). */
const WORTH_A_WORD = ['recovered', 'flush_pending'];

type Tab = keyof typeof TABS;
const TAB_NAMES = Object.keys(TABS) as Tab[];

interface PageProps {
  readonly name: string;
  readonly tab: string;
  /** Of the tab: the port to open. */
  readonly part?: string | undefined;
}

export function InstancePage({ name, tab, part }: PageProps) {
  const query = { data: instances.value, error: instances_error.value, reload: async () => refreshSoon() };
  const shown = TAB_NAMES.find((each) => each === tab);
  return (
    <Loaded query={query} lines={6}>
      {(list) => {
        const instance = list.find((each) => each.name === name || each.id === name);
        if (instance && shown === 'ports' && part !== undefined)
          return <OpenPort instance={instance} port_id={part} />;
        return instance && shown ? (
          <Found instance={instance} tab={shown} />
        ) : (
          <NotFoundPage what="instance" />
        );
      }}
    </Loaded>
  );
}

function Found({ instance, tab }: { readonly instance: Instance; readonly tab: Tab }) {
  const { Panel, name: tab_name } = TABS[tab];
  const tabs = useRef<HTMLElement>(null);
  const width = useWidth(tabs, 0);
  useEffect(() => {
    document.title = `${instance.name}: ${tab_name} · Berth`;
  }, [instance.name, tab_name]);
  useEffect(() => {
    // On a narrow screen the tabs scroll, also after it was turned; the page must not.
    const strip = tabs.current;
    const current = strip?.querySelector('[aria-current]')?.getBoundingClientRect();
    if (!strip || !current) return;
    const middle = strip.getBoundingClientRect().left + width / 2;
    strip.scrollLeft += current.left + current.width / 2 - middle;
  }, [tab_name, width]);
  return (
    <>
      <Head instance={instance} />
      <Receipt instance={instance} />
      <nav ref={tabs} class="tabs" aria-label="Parts of this instance">
        {TAB_NAMES.map((each) => (
          <a
            key={each}
            href={`/instances/${instance.name}${each === 'overview' ? '' : `/${each}`}`}
            aria-current={each === tab ? 'page' : undefined}
          >
            {TABS[each].name}
          </a>
        ))}
      </nav>
      <Panel key={tab} instance={instance} />
    </>
  );
}

function Head({ instance }: { readonly instance: Instance }) {
  const [forking, setForking] = useState(false);
  const { name, image, cpus, memory_mib, disk_gib, vm, labels, disk, deleting } = instance;
  const has_nothing = disk.generation === 0 && vm.state !== 'running';
  return (
    <header class="page-head instance-head">
      <div>
        <a class="crumb" href="/">
          <Icon name="back" />
          Instances
        </a>
        <div class="title-line">
          <h1>{name}</h1>
          <span aria-live="polite">
            <StateBadge instance={instance} />
          </span>
        </div>
        <p class="lead">
          {image} · {plural(cpus, 'CPU')} · {mebibytes(memory_mib)} memory · {disk_gib} GiB disk{' '}
          <Labels labels={labels} />
        </p>
        {vm.reason && (vm.state === 'failed' || WORTH_A_WORD.includes(vm.reason.code)) && (
          <p class={vm.state === 'failed' ? 'reason bad' : 'reason'}>
            {vm.reason.message} <code>{vm.reason.code}</code>
          </p>
        )}
      </div>
      <div class="page-actions">
        <ActionButtons
          instance={instance}
          also={has_nothing ? 'Fork needs saved files: start the VM first.' : undefined}
        >
          <Button
            disabled={!works() || deleting || has_nothing}
            title="A new instance with the same files"
            onClick={() => setForking(true)}
          >
            <Icon name="fork" />
            Fork
          </Button>
        </ActionButtons>
      </div>
      {forking && <ForkDialog instance={instance} onClose={() => setForking(false)} />}
    </header>
  );
}
