/**
 * Opens the console in a browser and logs a new user in. The control plane runs in this process; there are no guests.
 */
import { join } from 'node:path';
import type { Locator, Page, Route } from 'playwright-core';
import type { AppContext } from '../../src/control-plane/context.ts';
import { apiForFile, type TestApi } from './api.ts';
import { startBrowser, type WatchedBrowser } from './browser.ts';
import type { Person, PersonOptions } from './people.ts';

const CONSOLE_DIR = join(import.meta.dirname, '..', '..', 'console', 'dist');
export const PASSWORD = 'harbour lantern seven';
const PATIENCE_MS = 120_000;

export interface Visit {
  readonly who: Person;
  readonly page: Page;
  readonly button: (name: string) => Locator;
  readonly heading: (name: string) => Locator;
  readonly dialog: () => Locator;
  readonly alert: () => Locator;
  readonly place: (name: string) => Locator;
  readonly logIn: () => Promise<void>;
  /** Loads the page at `path`, and waits until its event stream is open. */
  readonly listenAt: (path: string) => Promise<void>;
  readonly leave: () => Promise<void>;
}

export interface ConsoleForFile {
  readonly api: TestApi;
  readonly browser: WatchedBrowser;
  /** Logs a new user in, in a new browser context, at `path`. */
  readonly visit: (path?: string, options?: PersonOptions) => Promise<Visit>;
}

/** To be awaited at the top of a file. */
export async function consoleForFile(context: Partial<AppContext> = {}, port = 0): Promise<ConsoleForFile> {
  await import('../../console/build.ts');
  const api = await apiForFile({ port, context: { console_dir: CONSOLE_DIR, ...context } });
  const origin = api.origin.replace('127.0.0.1', 'localhost');
  const others = context.oidc ? [context.oidc.provider.issuer] : [];
  const browser = await startBrowser(origin, others);
  api.beforeClose(() => browser.close());
  const visit = async (path = '/', options: PersonOptions = {}) => {
    const who = await api.person({ ...options, password: PASSWORD });
    const window = await browser.newContext({ baseURL: origin });
    window.setDefaultTimeout(PATIENCE_MS);
    const page = await window.newPage();
    const visited = visitOf(page, who);
    await page.goto(path);
    await visited.logIn();
    await visited.button('Log out').waitFor();
    return visited;
  };
  return { api, browser, visit };
}

function visitOf(page: Page, who: Person): Visit {
  const button = (name: string) => page.getByRole('button', { name, exact: true });
  return {
    who,
    page,
    button,
    heading: (name) => page.getByRole('heading', { name, exact: true }),
    dialog: () => page.getByRole('dialog'),
    alert: () => page.getByRole('alert').filter({ hasText: /\S/ }),
    place: (name) => page.getByRole('navigation', { name: 'Console' }).getByRole('link', { name }),
    logIn: async () => {
      await page.getByLabel('E-mail').fill(who.email);
      await page.getByLabel('Password', { exact: true }).fill(PASSWORD);
      await button('Log in').click();
    },
    listenAt: async (path) => {
      // Leaves the old page first, so that the answer to its stream is not taken for the new page's.
      const { href } = new URL(path, page.url());
      await page.goto('about:blank');
      const streams = page.waitForResponse('**/v1/events/stream*');
      await page.goto(href);
      await streams;
    },
    leave: () => page.context().close(),
  };
}

export interface Held {
  /** Resolves when a request waits and its answer is ready. */
  readonly asked: Promise<void>;
  /** Delivers the answer, and resolves when it has arrived. */
  readonly release: () => Promise<void>;
}

/** Holds the answer to the next request that `fits`. Later ones pass. */
export async function holdNext(page: Page, fits: (url: URL, method: string) => boolean): Promise<Held> {
  const asked = Promise.withResolvers<void>();
  const released = Promise.withResolvers<void>();
  const given = Promise.withResolvers<void>();
  let first = true;
  const hold = async (route: Route) => {
    if (!first || !fits(new URL(route.request().url()), route.request().method())) return route.fallback();
    first = false;
    const response = await route.fetch();
    asked.resolve();
    await released.promise;
    await route.fulfill({ response });
    await route.request().response();
    given.resolve();
  };
  await page.route('**/v1/**', hold);
  return {
    asked: asked.promise,
    release: async () => {
      released.resolve();
      await given.promise;
    },
  };
}
