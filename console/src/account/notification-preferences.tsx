import type { NotificationKind, NotificationPreferences } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { Failure } from '../ui/failure.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';

/** Chooses which kinds of notifications are mailed. Those about the account's security always are. */
export function NotificationPreferencesForm() {
  const query = useQuery('preferences', () => call('getNotificationPreferences', {}));
  return (
    <Section
      title="By mail"
      lead="All notifications are listed above. Those about your account’s security are always mailed."
    >
      <Loaded query={query} lines={2}>
        {(preferences) => <Form preferences={preferences} onSaved={query.put} />}
      </Loaded>
    </Section>
  );
}

function Form({
  preferences,
  onSaved,
}: {
  readonly preferences: NotificationPreferences;
  readonly onSaved: (saved: NotificationPreferences) => void;
}) {
  const action = useAction(async (kind: NotificationKind, mailed: boolean) => {
    const kept = Object.entries(preferences.mail).filter(([each]) => !isFixed(each));
    const mail = { ...Object.fromEntries(kept), [kind]: mailed };
    onSaved(await call('setNotificationPreferences', { body: { mail } }));
  });
  const isFixed = (kind: string) => (preferences.always as readonly string[]).includes(kind);
  const kinds = Object.entries(preferences.mail) as [NotificationKind, boolean][];
  return (
    <div class="panel">
      <div class="mail-kinds">
        {kinds.map(([kind, mailed]) => (
          <label key={kind} class={isFixed(kind) ? 'dim' : ''}>
            <input
              type="checkbox"
              checked={mailed}
              disabled={isFixed(kind)}
              // One change at a time, because each request sends all preferences.
              onClick={(event) => action.busy && event.preventDefault()}
              onChange={(event) => void action.run(kind, event.currentTarget.checked)}
            />
            <code>{kind}</code>
          </label>
        ))}
      </div>
      <Failure text={action.error} />
    </div>
  );
}
