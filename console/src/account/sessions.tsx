/** The user's sessions. */
import type { Session } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { logout } from '../session.ts';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

export function Sessions() {
  const list = useList('sessions', (query) => call('listSessions', { query }));
  const nameOf = ({ current }: Session) => (current ? 'Log out' : 'End');
  return (
    <Section title="Sessions">
      <ListTable
        list={list}
        empty={null}
        columns={[
          {
            head: 'Browser',
            cell: ({ user_agent, current }) => (
              <>
                <span title={user_agent}>{browserOf(user_agent)}</span>{' '}
                {current && <span class="tag accent">this one</span>}
              </>
            ),
          },
          { head: 'Address', class: 'wide-only nowrap', cell: ({ ip }) => ip },
          { head: 'Last seen', class: 'nowrap', cell: (each) => <Time at={each.last_seen_at} /> },
          { head: 'Ends', class: 'wide-only nowrap', cell: (each) => <Time at={each.ends_at} /> },
        ]}
        actions={[
          {
            name: nameOf,
            about: (each) => `${nameOf(each)}: ${browserOf(each.user_agent)}, ${each.ip}`,
            work: ({ id, current }) => (current ? logout() : call('revokeSession', { path: { id } })),
          },
        ]}
      />
    </Section>
  );
}

/** A short name for a user agent. The order matters, because most browsers also name others. */
const BROWSERS = [
  [/\bberth\b/i, 'berth'],
  [/Edg\//, 'Edge'],
  [/Firefox\//, 'Firefox'],
  [/Chrom(e|ium)\//, 'Chrome'],
  [/Safari\//, 'Safari'],
  [/curl\//, 'curl'],
] as const;
const SYSTEMS = [
  [/Android/, 'Android'],
  [/iPhone|iPad/, 'iOS'],
  [/Mac OS X/, 'macOS'],
  [/Windows/, 'Windows'],
  [/Linux/, 'Linux'],
] as const;

function browserOf(user_agent: string): string {
  const browser = BROWSERS.find(([pattern]) => pattern.test(user_agent))?.[1];
  const system = SYSTEMS.find(([pattern]) => pattern.test(user_agent))?.[1];
  if (browser === undefined) return user_agent.slice(0, 40) || 'unknown';
  return system === undefined ? browser : `${browser} on ${system}`;
}
