/**
 * Drives Debian's Chromium with Playwright's library. For every page it records violations of the content security
 * policy, requests to other servers, and script errors; `assertQuiet` fails on any of them. Also checks accessibility
 * (axe) and layout shifts.
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

const EXECUTABLE = '/usr/bin/chromium-headless-shell';
/** The reason why no browser is available, for `skip`; false if one is. */
export const NO_BROWSER = existsSync(EXECUTABLE) ? false : `there is no ${EXECUTABLE}`;

const PATIENCE_MS = 120_000;
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
/** Runs in the page before its own scripts. */
const TELL_VIOLATIONS = `document.addEventListener('securitypolicyviolation', (event) =>
  globalThis.tellViolation(event.effectiveDirective + ' ' + event.blockedURI + ' ' + event.sample));`;
/** Records layout shifts that no input caused (Layout Instability API). */
const NOTE_SHIFTS = `globalThis.shifts = [];
  new PerformanceObserver((list) => {
    for (const { hadRecentInput, value, sources } of list.getEntries())
      if (!hadRecentInput)
        globalThis.shifts.push({ value, what: sources.map(({ node }) => node?.textContent?.slice(0, 40)).join(' | ') });
  }).observe({ type: 'layout-shift', buffered: true });`;
/** A number that appears late causes this much; a line of text that moves causes more. */
const MOST_SHIFT = 0.002;

export interface WatchedBrowser {
  /** A context with separate cookies and storage. */
  newContext(options?: BrowserContextOptions): Promise<BrowserContext>;
  /** Fails if a page violated its policy, sent a request to another origin, or had a script error. */
  assertQuiet(): void;
  close(): Promise<void>;
}

/** @param origin the only origin that pages may send requests to, beside `others`, which they lead to */
export async function startBrowser(origin: string, others: readonly string[] = []): Promise<WatchedBrowser> {
  const args = ['--disable-dev-shm-usage', '--disable-gpu'];
  // Chromium's sandbox does not work for root, and tests with guests run as root.
  if (process.getuid?.() === 0) args.push('--no-sandbox');
  const browser: Browser = await chromium.launch({ executablePath: EXECUTABLE, args, timeout: PATIENCE_MS });
  const violations: string[] = [];
  const strangers: string[] = [];
  const failures: string[] = [];

  const watch = (page: Page) => {
    page.on('request', (request) => {
      const url = new URL(request.url());
      if (url.protocol !== 'data:' && ![origin, ...others].includes(url.origin))
        strangers.push(request.url());
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
      // Without a graphics card an animation takes much of a processor, which a starting guest needs.
      const calm = { viewport: { width: 1280, height: 800 }, reducedMotion: 'reduce' } as const;
      const context = await browser.newContext({ ...calm, ...options });
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

/** Rules whose result depends on the theme. */
const COLOUR_RULES = ['color-contrast', 'link-in-text-block'];

/** WCAG 2.2 asks for targets of 24 px. axe leaves this rule out unless it is named. */
const FURTHER_RULES = { 'target-size': { enabled: true } };

/**
 * The serious and critical findings of axe, one line each; with `every` the others too. `colours_alone`: for a page that was
 * checked in another theme already.
 */
export async function accessibilityFindings(
  page: Page,
  { colours_alone = false, every = false }: { colours_alone?: boolean; every?: boolean } = {},
): Promise<string[]> {
  // Injected through the debugger, because the page's policy forbids other scripts.
  if (!(await page.evaluate('"axe" in window'))) await page.evaluate(AXE);
  const rules = colours_alone ? { runOnly: COLOUR_RULES } : { rules: FURTHER_RULES };
  const options = { resultTypes: ['violations'], ...rules };
  const { violations } = (await page.evaluate(`axe.run(document, ${JSON.stringify(options)})`)) as {
    violations: readonly Finding[];
  };
  return violations
    .filter(({ impact }) => every || impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 160)} ${failureSummary}`),
    );
}

interface Shift {
  /** The share of the window times the distance (0 to 1). */
  readonly value: number;
  readonly what: string;
}

/** The layout shifts since the page was opened that no input caused. */
export async function layoutShifts(page: Page): Promise<string[]> {
  const noted = 'new Promise((told) => requestAnimationFrame(() => setTimeout(() => told(shifts))))';
  const shifts = (await page.evaluate(noted)) as readonly Shift[];
  return shifts
    .filter(({ value }) => value > MOST_SHIFT)
    .map(({ value, what }) => `moved (${value}): ${what}`);
}

/** By how much the page is wider than its window. */
export function overhangPx(page: Page): Promise<number> {
  return page.evaluate('document.scrollingElement.scrollWidth - document.documentElement.clientWidth');
}

/** Adds a virtual authenticator whose user is always present (WebAuthn L3, section 11). */
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
