/**
 * Checks what must hold for every page of the console: accessibility in both themes and on a phone, the width, and that
 * nothing shifts.
 */
import type { Page } from 'playwright-core';
import { accessibilityFindings, layoutShifts, overhangPx } from './browser.ts';

const DESK = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 800 };

/** Controls that a finger could miss. A link inside a sentence is as high as its line (WCAG 2.2, success criterion 2.5.8). */
const SMALL_TARGETS = `[...document.querySelectorAll('a, button, input, select, summary')]
  .filter((each) => !each.matches('p a'))
  .map((each) => [each.getBoundingClientRect(), each.outerHTML.slice(0, 80)])
  .filter(([{ width, height }]) => width > 0 && (width < 23.5 || height < 23.5))
  .map(([{ width, height }, html]) => 'a target of ' + Math.round(width) + ' x ' + Math.round(height) + ': ' + html)`;

/** Labels of charts that their picture cuts off. */
const CUT_LABELS = `[...document.querySelectorAll('main svg text')]
  .filter((each) => {
    const [label, picture] = [each.getBoundingClientRect(), each.ownerSVGElement.getBoundingClientRect()];
    return label.left < picture.left || label.right > picture.right || label.top < picture.top || label.bottom > picture.bottom;
  })
  .map((each) => 'a label that is cut off: ' + each.textContent)`;

/** The failed checks, one line each. Leaves the page at desktop width. */
export async function pageFindings(page: Page, origin: string, path: string): Promise<string[]> {
  const open = async () => {
    await page.goto(`${origin}${path}`);
    await page.locator('h1').waitFor();
    await page.locator('[aria-busy="true"]').first().waitFor({ state: 'detached' });
  };
  const found: string[] = [];
  const check = async (where: string) => {
    for (const colorScheme of ['light', 'dark'] as const) {
      await page.emulateMedia({ colorScheme });
      // Nothing else depends on the theme.
      const colours_alone = colorScheme === 'dark';
      const findings = await accessibilityFindings(page, { colours_alone });
      found.push(...findings.map((each) => `${where}, ${colorScheme}: ${each}`));
    }
    await page.emulateMedia({ colorScheme: 'light' });
  };
  await page.setViewportSize(PHONE);
  await open();
  const overhang = await overhangPx(page);
  if (overhang > 0) found.push(`${overhang} px wider than a phone`);
  found.push(...(await layoutShifts(page)).map((each) => `on a phone ${each}`));
  for (const look of [SMALL_TARGETS, CUT_LABELS]) found.push(...((await page.evaluate(look)) as string[]));
  await check('on a phone');
  await page.setViewportSize(DESK);
  await open();
  found.push(...(await layoutShifts(page)));
  await check('at a desk');
  return found.map((each) => `${path} ${each}`);
}
