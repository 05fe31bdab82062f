/**
 * What holds for every dialog of the console, told in a line for each that does not: nothing serious for axe in both
 * themes, no wider than a phone, the keyboard stays inside, what comes inside moves nothing above it, Escape closes it, and the
 * focus is back where it was.
 */
import type { Locator, Page } from 'playwright-core';
import { accessibilityFindings, overhangPx } from './browser.ts';

const TABS = 24;
const ACTIVE_IN_TOP_DIALOG = `(() => {
  const open = [...document.querySelectorAll('dialog[open]')].at(-1);
  // The body: it has gone on to the browser's own buttons, from where it comes back.
  return document.activeElement === document.body || open.contains(document.activeElement);
})()`;

/** Of the dialog that is open, which closes. @param opener has the focus afterwards */
export async function dialogFindings(
  page: Page,
  opener: Locator,
  close: (dialog: Locator) => Promise<void> = () => page.keyboard.press('Escape'),
): Promise<string[]> {
  const dialog = page.locator('dialog[open]').last();
  const title = await dialog.getByRole('heading').first().innerText();
  const found: string[] = [];
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme });
    const colours_alone = colorScheme === 'dark';
    for (const each of await accessibilityFindings(page, { colours_alone }))
      found.push(`${title} ${colorScheme}: ${each}`);
  }
  await page.emulateMedia({ colorScheme: 'light' });
  await page.setViewportSize({ width: 390, height: 800 });
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
  await page.waitForFunction(`document.querySelectorAll('dialog[open]').length === ${before - 1}`);
  // Where the next frame has it: what was closed may still be on its way out.
  await page.evaluate('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))');
  if (!(await opener.evaluate((element) => element === element.ownerDocument.activeElement))) {
    const instead = await page.evaluate('document.activeElement.outerHTML.slice(0, 80)');
    found.push(`${title}: the focus does not go back, but to ${instead}`);
  }
  return [...new Set(found)];
}
