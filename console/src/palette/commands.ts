/**
 * Builds the commands that the command palette offers: actions and tabs of the current instance, pages, other instances
 * and their actions, and settings.
 */
import type { Instance } from '../../../client/src/berth.ts';
import { actionsOf, factsOf, runAction, type VmAction, whyFixed } from '../instance/actions.tsx';
import { is_creating } from '../instance/create-dialog.tsx';
import { instances } from '../live/instances.ts';
import { chooseOrganisation, org, orgs, whyNoWork } from '../live/membership.ts';
import { hrefOf, isVisible, NAVIGATION } from '../navigation.ts';
import { navigate, partsOf, path } from '../router.ts';
import { logout } from '../session.ts';
import { setTheme, THEME_NAMES, THEMES } from '../theme.ts';
import type { IconName } from '../ui/icon.tsx';
import { times_are_exact, toggleTimes } from '../ui/time.tsx';
import { tell } from '../ui/toasts.tsx';
import { attempt } from '../use-action.ts';
import type { Findable } from './match.ts';

export interface Command extends Findable {
  readonly id: string;
  readonly icon: IconName;
  /** Shown dim behind the name. */
  readonly note: string;
  readonly run: () => void;
}

/** Force stop is not offered, because it asks first; it stands on the instance's page. */
const OFFERED: readonly VmAction[] = ['start', 'stop', 'restart', 'suspend', 'flush'];
const TOLD: Record<VmAction, string> = {
  start: 'Starting',
  stop: 'Stopping',
  restart: 'Restarting',
  suspend: 'Suspending',
  flush: 'Flushed',
  halt: 'Stopping',
};
const TABS = ['generations', 'terminal', 'keys', 'egress', 'activity', 'settings'];

/** @param typed without a word, the actions of other instances are left out */
export function commandsFor(typed: string): readonly Command[] {
  const all = instances.value ?? [];
  const [first, name] = partsOf(path.value);
  const here = first === 'instances' ? all.find((each) => each.name === name || each.id === name) : undefined;
  const others = all.filter((each) => each !== here);
  return [
    ...(here ? [...actionCommands(here), ...tabCommands(here)] : []),
    ...createCommands(),
    ...pageCommands(),
    ...others.map(instanceCommand),
    ...(typed.trim() === '' ? [] : others.flatMap(actionCommands)),
    ...settingCommands(),
  ];
}

function actionCommands(instance: Instance): Command[] {
  if (whyFixed(instance) !== undefined) return [];
  return OFFERED.filter((action) => actionsOf(instance).includes(action)).map((action) => ({
    id: `${action}-${instance.id}`,
    icon: factsOf(action, instance).icon,
    name: `${factsOf(action, instance).name} ${instance.name}`,
    note: factsOf(action, instance).about,
    run: () =>
      void attempt(async () => {
        await runAction(action, instance);
        tell('good', `${TOLD[action]} ${instance.name}.`, `/instances/${instance.name}`);
      }),
  }));
}

function tabCommands({ id, name }: Instance): Command[] {
  return TABS.map((tab) => ({
    id: `${tab}-${id}`,
    icon: 'instances',
    name: `${tab.charAt(0).toUpperCase()}${tab.slice(1)} of ${name}`,
    note: 'Page',
    run: () => navigate(`/instances/${name}/${tab}`),
  }));
}

function createCommands(): Command[] {
  if (whyNoWork() !== undefined) return [];
  const run = () => {
    navigate('/');
    is_creating.value = true;
  };
  return [
    { id: 'create', icon: 'plus', name: 'New instance', note: 'Opens the form', words: 'create make', run },
  ];
}

function instanceCommand({ id, name, vm, labels, deleting }: Instance): Command {
  const state = deleting ? 'deleting' : vm.state;
  return {
    id,
    icon: 'instances',
    name,
    note: `Instance, ${state}`,
    words: `instance ${state} ${Object.entries(labels).flat().join(' ')}`,
    run: () => navigate(`/instances/${name}`),
  };
}

function pageCommands(): Command[] {
  return NAVIGATION.flat()
    .filter(isVisible)
    .map((page) => ({
      id: page.at,
      icon: page.icon,
      name: page.name,
      note: 'Page',
      words: 'page go to',
      run: () => navigate(hrefOf(page)),
    }));
}

function settingCommands(): Command[] {
  const switches = orgs.value
    .filter(({ id }) => id !== org.value?.id)
    .map((each) => ({
      id: each.id,
      icon: 'people' as const,
      name: `Switch to ${each.name}`,
      note: 'Organisation',
      run: () => chooseOrganisation(each.id),
    }));
  const themes = THEMES.map((each) => ({
    id: `theme-${each}`,
    icon: each === 'dark' ? ('moon' as const) : ('sun' as const),
    name: `Colours: ${THEME_NAMES[each]}`,
    note: 'This browser',
    words: 'theme',
    run: () => setTheme(each),
  }));
  const times: Command = {
    id: 'times',
    icon: 'audit',
    name: times_are_exact.value ? 'Show relative times' : 'Show exact times',
    note: 'This browser',
    run: toggleTimes,
  };
  const leave: Command = {
    id: 'logout',
    icon: 'leave',
    name: 'Log out',
    note: 'Session',
    words: 'sign out end',
    run: () => void attempt(logout),
  };
  return [...switches, times, ...themes, leave];
}
