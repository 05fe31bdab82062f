/** Where one is logged in. */
import type { Session } from '../../../client/src/generated.ts';
import { call, sayError } from '../api.ts';
import { logout } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { More } from '../ui/more.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';

export function Sessions() {
  const list = useList('sessions', (cursor) =>
    call('listSessions', { query: cursor === undefined ? {} : { cursor } }),
  );
  const end = async ({ id, current }: Session) => {
    if (current) return logout();
    try {
      await call('revokeSession', { path: { id } });
    } catch (error) {
      tell('bad', sayError(error));
    }
    await list.reload();
  };
  return (
    <Section title="Sessions">
      <Loaded query={list}>
        {(sessions) => (
          <table class="table">
            <thead>
              <tr>
                <th>Browser</th>
                <th class="wide-only">Address</th>
                <th>Last seen</th>
                <th class="wide-only">Ends</th>
                <th class="end">
                  <span class="hidden">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {sessions.map((each) => (
                <tr key={each.id}>
                  <td>
                    <span title={each.user_agent}>{browserOf(each.user_agent)}</span>{' '}
                    {each.current && <span class="tag accent">this one</span>}
                  </td>
                  <td class="wide-only nowrap">{each.ip}</td>
                  <td class="nowrap">
                    <Time at={each.last_seen_at} />
                  </td>
                  <td class="wide-only nowrap">
                    <Time at={each.ends_at} />
                  </td>
                  <td class="end">
                    <Button
                      small
                      kind="quiet"
                      aria-label={`${each.current ? 'Log out' : 'End'}: ${browserOf(each.user_agent)}, ${each.ip}`}
                      onClick={() => void end(each)}
                    >
                      {each.current ? 'Log out' : 'End'}
                    </Button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </Loaded>
      <More more={list.more} />
    </Section>
  );
}

/** Roughly: whole user agents tell people nothing. The order matters: most name each other. */
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
