/**
 * Debian's Chromium, driven by Playwright's library. It records for every page the violations of its content security policy, requests
 * to other servers, and script errors; `assertQuiet` fails on any of them.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Page,
} from 'playwright-core';

const EXECUTABLE = '/usr/bin/chromium';
/** Why there is no browser here, for `skip`; false when there is one. */
export const NO_BROWSER = existsSync(EXECUTABLE) ? false : `there is no ${EXECUTABLE}`;

const PATIENCE_MS = 120_000;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
/** In the page, before its own scripts. */
const TELL_VIOLATIONS = `document.addEventListener('securitypolicyviolation', (event) =>
  globalThis.tellViolation(event.effectiveDirective + ' ' + event.blockedURI + ' ' + event.sample));`;
/** What has moved, by nobody's doing (Layout Instability API). */
const NOTE_SHIFTS = `globalThis.shifts = [];
  new PerformanceObserver((list) => {
    for (const { hadRecentInput, value, sources } of list.getEntries())
      if (!hadRecentInput)
        globalThis.shifts.push({ value, what: sources.map(({ node }) => node?.textContent?.slice(0, 40)).join(' | ') });
  }).observe({ type: 'layout-shift', buffered: true });`;
/** What a figure makes that comes late; a line of text that moves makes more. */
const MOST_SHIFT = 0.002;

export interface WatchedBrowser {
  /** With cookies and storage of its own. */
  newContext(options?: BrowserContextOptions): Promise<BrowserContext>;
  /** Fails if a page was refused something, asked somebody else, or its scripts failed. */
  assertQuiet(): void;
  close(): Promise<void>;
}

/** @param origin the only one that pages may ask */
export async function startBrowser(origin: string): Promise<WatchedBrowser> {
  const args = ['--disable-dev-shm-usage', '--disable-gpu'];
  // Its own sandbox cannot be had by root, as whom the guests are booted.
  if (process.getuid?.() === 0) args.push('--no-sandbox');
  const browser: Browser = await chromium.launch({ executablePath: EXECUTABLE, args, timeout: PATIENCE_MS });
  const violations: string[] = [];
  const strangers: string[] = [];
  const failures: string[] = [];

  const watch = (page: Page) => {
    page.on('request', (request) => {
      const url = new URL(request.url());
      if (url.protocol !== 'data:' && url.origin !== origin) strangers.push(request.url());
    });
    page.on('websocket', (socket) => {
      if (new URL(socket.url()).origin.replace(/^ws/, 'http') !== origin) strangers.push(socket.url());
    });
    page.on('pageerror', (error) => failures.push(error.stack ?? error.message));
    page.on('console', (message) => {
      if (message.text().includes('Content Security Policy')) violations.push(message.text());
    });
  };
  return {
    newContext: async (options) => {
      const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
      context.setDefaultTimeout(PATIENCE_MS);
      await context.exposeFunction('tellViolation', (what: string) => violations.push(what));
      await context.addInitScript(TELL_VIOLATIONS);
      await context.addInitScript(NOTE_SHIFTS);
      context.on('page', watch);
      return context;
    },
    assertQuiet: () =>
      assert.deepEqual({ violations, strangers, failures }, { violations: [], strangers: [], failures: [] }),
    close: () => browser.close(),
  };
}

interface Finding {
  readonly id: string;
  readonly impact: string;
  readonly help: string;
  readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[];
}

/** What a theme can change. */
const COLOUR_RULES = ['color-contrast', 'link-in-text-block'];

/** What axe finds that is serious or critical, in a line each. `colours_alone`: of a page that was looked at in another theme. */
export async function accessibilityFindings(
  page: Page,
  { colours_alone = false }: { colours_alone?: boolean } = {},
): Promise<string[]> {
  // By the debugger: the page's policy would not let it in otherwise.
  if (!(await page.evaluate('"axe" in window'))) await page.evaluate(AXE);
  const options = { resultTypes: ['violations'], ...(colours_alone ? { runOnly: COLOUR_RULES } : {}) };
  const { violations } = (await page.evaluate(`axe.run(document, ${JSON.stringify(options)})`)) as {
    violations: readonly Finding[];
  };
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 160)} ${failureSummary}`),
    );
}

interface Shift {
  /** The part of the window times how far it moved (0 to 1). */
  readonly value: number;
  readonly what: string;
}

/** What has moved since the page was opened though nobody did anything. */
export async function layoutShifts(page: Page): Promise<string[]> {
  const noted = 'new Promise((told) => requestAnimationFrame(() => setTimeout(() => told(shifts))))';
  const shifts = (await page.evaluate(noted)) as readonly Shift[];
  return shifts
    .filter(({ value }) => value > MOST_SHIFT)
    .map(({ value, what }) => `moved (${value}): ${what}`);
}

/** How far the page is wider than its window. */
export function overhangPx(page: Page): Promise<number> {
  return page.evaluate('document.scrollingElement.scrollWidth - document.documentElement.clientWidth');
}

/** A virtual authenticator that has its user beside it (WebAuthn L3, section 11). */
export async function addAuthenticator(page: Page): Promise<void> {
  const session = await page.context().newCDPSession(page);
  await session.send('WebAuthn.enable');
  await session.send('WebAuthn.addVirtualAuthenticator', {
    options: {
      protocol: 'ctap2',
      transport: 'internal',
      hasResidentKey: true,
      hasUserVerification: true,
      isUserVerified: true,
      automaticPresenceSimulation: true,
    },
  });
}
