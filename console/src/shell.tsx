/** The frame around every page: navigation, current place, and account. */
import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect } from 'preact/hooks';
import { attempt } from './attempt.ts';
import { chooseOrganisation, leads, operates, org, orgs } from './live/membership.ts';
import { unread } from './live/unread.ts';
import { partsOf, path } from './router.ts';
import { logout, user } from './session.ts';
import { setTheme, THEMES, type Theme, theme } from './theme.ts';
import { Mark } from './ui/gate.tsx';
import { Icon, type IconName } from './ui/icon.tsx';

interface Place {
  readonly at: string;
  readonly name: string;
  readonly icon: IconName;
  /** Whether the place is shown; absent: always. */
  readonly shown?: () => boolean;
}
const PLACES: readonly (readonly Place[])[] = [
  [
    { at: 'instances', name: 'Instances', icon: 'instances' },
    { at: 'ssh-keys', name: 'SSH keys', icon: 'key' },
  ],
  [
    { at: 'api-keys', name: 'API keys', icon: 'code' },
    { at: 'webhooks', name: 'Webhooks', icon: 'webhook' },
    { at: 'notifications', name: 'Notifications', icon: 'bell' },
  ],
  [
    { at: 'organisation', name: 'Organisation', icon: 'people' },
    { at: 'account', name: 'Account', icon: 'person' },
    // Last, because they appear only when the role is loaded, and so move nothing.
    { at: 'audit', name: 'Audit log', icon: 'audit', shown: leads },
    { at: 'operator', name: 'Operator', icon: 'server', shown: operates },
  ],
];

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
        {PLACES.map((places) => (
          <ul key={places[0]?.at}>
            {places
              .filter(({ shown }) => shown?.() !== false)
              .map((place) => (
                <PlaceLink key={place.at} place={place} here={partsOf(here)[0] ?? 'instances'} />
              ))}
          </ul>
        ))}
        <div class="side-end">
          <a class="side-reference" href="/docs/" target="_blank" rel="noreferrer">
            API reference
          </a>
          <ThemeSwitch />
          <div class="who">
            <span class="who-name" title={user.value?.email}>
              {user.value?.name || user.value?.email}
            </span>
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
      <main id="content" tabIndex={-1}>
        {here !== '/email' && <Unconfirmed />}
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
      Your address {user.value.email} is not confirmed. Until it is, you can make no API key, add no SSH key
      and accept no invitation. <a href="/email">Confirm it</a>
    </p>
  );
}

function toContent(): void {
  document.getElementById('content')?.focus();
}

function PlaceLink({ place, here }: { readonly place: Place; readonly here: string }) {
  const count = place.at === 'notifications' ? unread.value : 0;
  return (
    <li>
      <a
        href={place.at === 'instances' ? '/' : `/${place.at}`}
        aria-current={place.at === here ? 'page' : undefined}
      >
        <Icon name={place.icon} />
        {place.name}
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
  if (orgs.value.length < 2) return <p class="org-name">{org.value?.name ?? '\u00a0'}</p>;
  return (
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
  );
}

const THEME_ICONS: Record<Theme, IconName> = { system: 'screen', light: 'sun', dark: 'moon' };
const THEME_NAMES: Record<Theme, string> = { system: 'As the system', light: 'Light', dark: 'Dark' };

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
