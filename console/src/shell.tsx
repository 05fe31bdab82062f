/**
 * Renders the frame around every page after the login: navigation, logout, notices, and the choice of organisation and
 * theme.
 */
import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { readChoice, writeChoice } from './choices.ts';
import { clockTime } from './format.ts';
import { lost_since_ms, onReconnect } from './live/connection.ts';
import { chooseOrganisation, leads, org, orgs } from './live/membership.ts';
import { unread } from './live/streams.ts';
import { hrefOf, isVisible, NAVIGATION, type NavigationPage } from './navigation.ts';
import { PaletteButton, PaletteHost, PaletteIconButton } from './palette/palette.tsx';
import { partsOf, path } from './router.ts';
import { logout, user } from './session.ts';
import { sendsMail } from './settings.ts';
import { setTheme, THEME_NAMES, THEMES, type Theme, theme } from './theme.ts';
import { Button } from './ui/button.tsx';
import { Icon, type IconName } from './ui/icon.tsx';
import { Mark } from './ui/page.tsx';
import { tell } from './ui/toasts.tsx';
import { attempt } from './use-action.ts';

const menu_open = signal(false);

export function Shell({ children }: { readonly children: ComponentChildren }) {
  const here = path.value;
  useEffect(() => {
    menu_open.value = false;
  }, [here]);
  return (
    <div class="shell">
      <button type="button" class="skip" onClick={toContent}>
        Skip to the content
      </button>
      <header class="top">
        <button
          type="button"
          class="icon-button"
          aria-label="Menu"
          aria-expanded={menu_open.value}
          aria-controls="side"
          onClick={() => {
            menu_open.value = !menu_open.value;
          }}
        >
          <Icon name="menu" />
        </button>
        <a class="brand" href="/">
          <Mark />
          Berth
        </a>
        <PaletteIconButton />
        <a class="top-bell" href="/notifications" aria-label={`Notifications, ${unread.value} unread`}>
          <Icon name="bell" />
          {unread.value > 0 && <span class="count">{unread.value}</span>}
        </a>
      </header>
      <nav id="side" class={menu_open.value ? 'side open' : 'side'} aria-label="Console">
        <a class="brand" href="/">
          <Mark />
          Berth
        </a>
        <OrgSwitch />
        <PaletteButton />
        {NAVIGATION.map((group) => (
          <ul key={group[0]?.at}>
            {group.filter(isVisible).map((page) => (
              <NavigationLink key={page.at} page={page} here={partsOf(here)[0] ?? 'instances'} />
            ))}
          </ul>
        ))}
        <div class="side-end">
          <a class="side-reference" href="/docs" target="_blank" rel="noreferrer">
            Documentation
          </a>
          <ThemeSwitch />
          <div class="who">
            <a class="who-name" href="/account" title={user.value?.email}>
              <span class="side-label">Logged in as</span>
              <span>{user.value?.name || user.value?.email}</span>
            </a>
            <button
              type="button"
              class="icon-button"
              aria-label="Log out"
              title="Log out"
              onClick={() => void attempt(logout)}
            >
              <Icon name="leave" />
            </button>
          </div>
        </div>
      </nav>
      <PaletteHost />
      <main id="content" tabIndex={-1}>
        <ConnectionBanner />
        {here !== '/email' && <Unconfirmed />}
        <MailNotice />
        {children}
      </main>
    </div>
  );
}

/** On every page of an unconfirmed account: the limits until its address is confirmed. */
function Unconfirmed() {
  if (user.value?.email_confirmed !== false) return null;
  return (
    <p class="notice unconfirmed" role="status">
      Your address {user.value.email} is not confirmed. Until it is, you cannot create API keys, add SSH keys
      or accept invitations. <a href="/email">Confirm it</a>
    </p>
  );
}

function toContent(): void {
  document.getElementById('content')?.focus();
}

function NavigationLink({ page, here }: { readonly page: NavigationPage; readonly here: string }) {
  const count = page.at === 'notifications' ? unread.value : 0;
  return (
    <li>
      <a href={hrefOf(page)} aria-current={page.at === here ? 'page' : undefined}>
        <Icon name={page.icon} />
        {page.name}
        {count > 0 && (
          <span class="count">
            {count > 99 ? '99+' : count}
            <span class="hidden"> unread</span>
          </span>
        )}
      </a>
    </li>
  );
}

function OrgSwitch() {
  const is_alone = orgs.value.length < 2;
  return (
    <div class="org">
      <span class="side-label" aria-hidden={!is_alone}>
        Organisation
      </span>
      {is_alone ? (
        <p class="org-name" title={org.value?.name}>
          {org.value?.name ?? '\u00a0'}
        </p>
      ) : (
        <select
          class="org-switch"
          aria-label="Organisation"
          value={org.value?.id}
          onChange={(event) => chooseOrganisation(event.currentTarget.value)}
        >
          {orgs.value.map(({ id, name }) => (
            <option key={id} value={id}>
              {name}
            </option>
          ))}
        </select>
      )}
    </div>
  );
}

const THEME_ICONS: Record<Theme, IconName> = { system: 'screen', light: 'sun', dark: 'moon' };

function ThemeSwitch() {
  return (
    <fieldset class="theme-switch">
      <legend class="hidden">Colours</legend>
      {THEMES.map((each) => (
        <label key={each} title={THEME_NAMES[each]}>
          <input type="radio" name="theme" checked={theme.value === each} onChange={() => setTheme(each)} />
          <Icon name={THEME_ICONS[each]} />
          <span class="hidden">{THEME_NAMES[each]}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** Says that the connection is lost, and how old the page is. Screen readers announce both changes. */
function ConnectionBanner() {
  const since_ms = lost_since_ms.value;
  useEffect(() => onReconnect(() => tell('good', 'Connected again. The page is current.')), []);
  return (
    <div class="connection" role="status">
      {since_ms !== null && (
        <p class="connection-lost">
          <Icon name="warning" />
          <span>
            <strong>Connection lost.</strong> Reconnecting… Shown as of {clockTime(since_ms)}.
          </span>
        </p>
      )}
    </div>
  );
}

/** For owners and admins of a server without a mail server: what does not arrive, until they hide it in this browser. */
function MailNotice() {
  const [hidden, setHidden] = useState(() => readChoice('mail-notice') === 'hidden');
  if (hidden || sendsMail() || !leads()) return null;
  const hide = () => {
    writeChoice('mail-notice', 'hidden');
    setHidden(true);
  };
  return (
    <div class="notice page-notice" role="status">
      <details>
        <summary>This server sends no mail.</summary>
        <p>
          Pass the link of an invitation on yourself. To reset a password, run{' '}
          <code>berth user reset-password</code> on the server. To send mail, set <code>BERTH_SMTP_URL</code>{' '}
          there.
        </p>
      </details>
      <Button small kind="quiet" onClick={hide}>
        Hide
      </Button>
    </div>
  );
}
