/** The user's sessions. */
import { useState } from 'preact/hooks';
import { programName } from '../../../client/src/words.ts';
import { call } from '../api.ts';
import { plural } from '../format.ts';
import { logout } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { ListTable } from '../ui/loaded-list.tsx';
import { Section } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { useList } from '../use-list.ts';

export function Sessions() {
  const [asked, setAsked] = useState(false);
  const list = useList('sessions', (query) => call('listSessions', { query }));
  const endOthers = async () => {
    const { count } = await call('revokeOtherSessions', {});
    await list.reload();
    tell('good', count === 0 ? 'There was no other session.' : `Logged out ${plural(count, 'session')}.`);
  };
  return (
    <Section
      title="Sessions"
      lead="Where you are logged in."
      actions={<Button onClick={() => setAsked(true)}>Log out all other sessions</Button>}
    >
      <ListTable
        list={list}
        empty={null}
        columns={[
          {
            head: 'Program',
            cell: ({ user_agent, current }) => (
              <>
                <span title={user_agent}>{programName(user_agent)}</span>{' '}
                {current && <span class="tag accent">this one</span>}
              </>
            ),
          },
          { head: 'Address', class: 'nowrap', below: true, cell: ({ ip }) => ip },
          {
            head: 'Last seen',
            class: 'nowrap',
            below: true,
            cell: (each) => <Time at={each.last_seen_at} />,
          },
          { head: 'Expires', class: 'nowrap', below: true, cell: (each) => <Time at={each.ends_at} /> },
        ]}
        actions={[
          {
            name: 'Log out',
            about: (each) => `Log out: ${programName(each.user_agent)}, ${each.ip}`,
            work: ({ id, current }) => (current ? logout() : call('revokeSession', { path: { id } })),
          },
        ]}
      />
      {asked && (
        <ConfirmDialog
          title="Log out all other sessions"
          verb="Log out"
          onClose={() => setAsked(false)}
          work={endOthers}
        >
          <p>
            All other browsers are logged out at once. API keys, and so the logins of command lines, stay
            valid.
          </p>
        </ConfirmDialog>
      )}
    </Section>
  );
}
