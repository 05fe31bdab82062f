/** The organisation's usage and quotas. */
import { call } from '../api.ts';
import { mebibytes } from '../format.ts';
import { org } from '../live/membership.ts';
import { Loaded, Section } from '../ui/page.tsx';
import { useQuery } from '../use-query.ts';

const plain = (value: number) => String(value);
const SHOWN = [
  ['instances', 'Instances', plain],
  ['cpus', 'CPUs', plain],
  ['memory_mib', 'Memory', mebibytes],
  ['disk_gib', 'Disk', (value: number) => `${value} GiB`],
  ['api_keys', 'API keys', plain],
  ['service_accounts', 'Service accounts', plain],
  ['webhooks', 'Webhooks', plain],
  ['streams', 'Live streams and consoles', plain],
] as const;

export function Quota() {
  const id = org.value?.id ?? '';
  const query = useQuery(`quota ${id}`, () => call('getOrgQuota', { path: { id } }));
  return (
    <Section title="Quotas">
      <Loaded query={query} lines={1}>
        {(quota) => (
          <dl class="facts panel">
            {SHOWN.map(([key, name, format]) => {
              const { used, limit } = quota[key];
              return (
                <div key={key}>
                  <dt>{name}</dt>
                  <dd>
                    {format(used)}
                    <span class="dim">{limit === null ? ', no limit' : ` of ${format(limit)}`}</span>
                    {limit !== null && <meter min={0} max={limit} value={used} aria-label={name} />}
                  </dd>
                </div>
              );
            })}
          </dl>
        )}
      </Loaded>
    </Section>
  );
}
