/**
 * Checks a dialog of the console, and returns a line for each failure:
 *
 * - axe finds nothing serious, in both themes, at a desk and on a phone.
 * - The dialog is no wider than a phone, and late content moves nothing above it.
 * - The keyboard focus stays inside. Escape closes the dialog, and the focus returns to its opener.
 */
import type { Locator, Page } from 'playwright-core';
import { accessibilityFindings, overhangPx } from './browser.ts';
import { until } from './waiting.ts';

const TABS = 24;
const ACTIVE_IN_TOP_DIALOG = `(() => {
  const open = [...document.querySelectorAll('dialog[open]')].at(-1);
  // The body has the focus while it is on the browser's own buttons. It returns from there.
  return document.activeElement === document.body || open.contains(document.activeElement);
})()`;

/** Checks the open dialog, and closes it. @param opener gets the focus afterwards */
export async function dialogFindings(
  page: Page,
  opener: Locator,
  close: (dialog: Locator) => Promise<void> = () => page.keyboard.press('Escape'),
): Promise<string[]> {
  const dialog = page.locator('dialog[open]').last();
  const title = await dialog.getByRole('heading').first().innerText();
  const found: string[] = [];
  const check = async (where: string) => {
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      const colours_alone = colorScheme === 'dark';
      for (const each of await accessibilityFindings(page, { colours_alone }))
        found.push(`${title} ${where}, ${colorScheme}: ${each}`);
    }
    await page.emulateMedia({ colorScheme: 'light' });
  };
  await check('at a desk');
  await page.setViewportSize({ width: 390, height: 800 });
  await check('on a phone');
  if ((await overhangPx(page)) > 0) found.push(`${title}: wider than a phone`);
  const box = await dialog.boundingBox();
  if (box && (box.x < 0 || box.x + box.width > 390)) found.push(`${title}: itself wider than a phone`);
  await page.setViewportSize({ width: 1280, height: 800 });
  for (let pressed = 0; pressed < TABS; pressed++) {
    await page.keyboard.press(pressed % 4 === 3 ? 'Shift+Tab' : 'Tab');
    if (!(await page.evaluate(ACTIVE_IN_TOP_DIALOG))) found.push(`${title}: the focus leaves it`);
  }
  const before = await page.locator('dialog[open]').count();
  await close(dialog);
  // Not page.waitForFunction: once it waits, it uses eval, which the page's policy refuses.
  await until(
    'the dialog is closed',
    async () => (await page.locator('dialog[open]').count()) === before - 1,
  );
  // Checked in the next frame, because a closed dialog may still be disappearing.
  await page.evaluate('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))');
  if (!(await opener.evaluate((element) => element === element.ownerDocument.activeElement))) {
    const instead = await page.evaluate('document.activeElement.outerHTML.slice(0, 80)');
    found.push(`${title}: the focus does not go back, but to ${instead}`);
  }
  return [...new Set(found)];
}
