/**
 * The root of the console. Chooses the page for the path and for the state of the session. Starts the live data
 * (events, instances, notifications) when a user logs in, and clears that user's data at the logout.
 */
import { useEffect, useState } from 'preact/hooks';
import { AccountPage } from './account/account-page.tsx';
import { sayError } from './api.ts';
import { ApiKeysPage } from './api-keys/api-keys-page.tsx';
import { InstancePage } from './instance/instance-page.tsx';
import { InstancesPage } from './instance-list/instances-page.tsx';
import { onReconnect, watchConnection } from './live/connection.ts';
import { instances, runInstances } from './live/instances.ts';
import { leaveMembership, loadMembership, operates, org, switches } from './live/membership.ts';
import { runStreams, runUnread, unread } from './live/streams.ts';
import { AuditPage } from './pages/audit.tsx';
import { DevicePage } from './pages/device.tsx';
import { LoginPage } from './pages/login.tsx';
import { ConfirmEmailPage, InvitationPage, keptInvitation, PasswordResetPage } from './pages/mail-links.tsx';
import { NotificationsPage } from './pages/notifications.tsx';
import { OperatorPage } from './pages/operator.tsx';
import { OrganisationPage } from './pages/organisation.tsx';
import { RegisterPage } from './pages/register.tsx';
import { SshKeysPage } from './pages/ssh-keys.tsx';
import { UsagePage } from './pages/usage.tsx';
import { partsOf, path } from './router.ts';
import { resumeSession, session, user } from './session.ts';
import { settings } from './settings.ts';
import { Shell } from './shell.tsx';
import { Button } from './ui/button.tsx';
import { Gate, Loaded, NotFoundPage } from './ui/page.tsx';
import { SudoDialog } from './ui/sudo-dialog.tsx';
import { dismissAll, Toasts } from './ui/toasts.tsx';
import { WebhookPage } from './webhooks/webhook-page.tsx';
import { WebhooksPage } from './webhooks/webhooks-page.tsx';

const RETRY_MS = 3_000;

export function App() {
  return (
    <>
      <Screen />
      <SudoDialog />
      <Toasts />
    </>
  );
}

function Screen() {
  const [first = ''] = partsOf(path.value);
  const waits = settings.value === null || (session.value === 'unknown' && first !== 'password-reset');
  if (waits) return <div class="waiting" role="status" aria-label="Loading" />;
  if (first === 'password-reset') return <PasswordResetPage />;
  if (session.value === 'unreachable') return <Unreachable />;
  if (session.value === 'out')
    return first === 'register' || first === 'invitation' ? <RegisterPage /> : <LoginPage />;
  // A page shows one user's data in one organisation. A change of either renders it again.
  return <Inside key={`${user.value?.id} ${switches.value}`} />;
}

/** It asks again by itself, because the server may just be starting. */
function Unreachable() {
  useEffect(() => {
    const timer = setInterval(() => void resumeSession(), RETRY_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <Gate title="The server does not answer">
      <p>Berth is not reachable at {location.host}, or is just starting. This page tries again by itself.</p>
      <Button kind="primary" onClick={() => void resumeSession()}>
        Try now
      </Button>
    </Gate>
  );
}

function Inside() {
  const [failure, setFailure] = useState<string | null>(null);
  const [attempts, setAttempts] = useState(1);
  useEffect(() => {
    const stop = new AbortController();
    setFailure(null);
    watchConnection(stop.signal);
    const begin = async () => {
      await loadMembership(stop.signal);
      if (stop.signal.aborted) return;
      runUnread(stop.signal);
      runInstances(stop.signal);
      runStreams(stop.signal);
    };
    begin().catch((error: unknown) => {
      if (!stop.signal.aborted) setFailure(sayError(error));
    });
    return () => {
      stop.abort();
      // The next user must not see this user's data.
      if (session.value !== 'in') {
        leaveMembership();
        unread.value = 0;
        dismissAll();
      }
      org.value = null;
      instances.value = undefined;
    };
  }, [attempts]);
  useEffect(() => {
    if (failure === null) return undefined;
    return onReconnect(() => setAttempts((before) => before + 1));
  }, [failure]);
  const begun = { data: undefined, error: failure, reload: async () => setAttempts(attempts + 1) };
  return (
    <Shell>
      {failure !== null && <Loaded query={begun}>{() => null}</Loaded>}
      {failure === null && org.value !== null && <Page />}
    </Shell>
  );
}

function Page() {
  const [there = 'instances', second, third, fourth] = partsOf(path.value);
  // After a login for an invitation, the invitation comes next.
  const first = there === 'login' && keptInvitation() !== '' ? 'invitation' : there;
  switch (first) {
    case 'instances':
    case 'login':
    case 'register':
      return second === undefined ? (
        <InstancesPage />
      ) : (
        <InstancePage key={second} name={second} tab={third ?? 'overview'} part={fourth} />
      );
    case 'usage':
      return <UsagePage />;
    case 'ssh-keys':
      return <SshKeysPage />;
    case 'api-keys':
      return <ApiKeysPage />;
    case 'webhooks':
      return second === undefined ? <WebhooksPage /> : <WebhookPage key={second} id={second} />;
    case 'notifications':
      return <NotificationsPage />;
    case 'organisation':
      return <OrganisationPage />;
    case 'audit':
      return <AuditPage />;
    case 'account':
      return <AccountPage />;
    case 'operator':
      return operates() ? <OperatorPage /> : <NotFoundPage />;
    case 'invitation':
      return <InvitationPage />;
    case 'email':
      return <ConfirmEmailPage />;
    case 'device':
      return <DevicePage />;
    default:
      return <NotFoundPage />;
  }
}
