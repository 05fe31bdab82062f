/** A VM that comes up, as its page in the console shows it. */
import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';
import type { Page } from 'playwright-core';

const BOOT_MS = 240_000;
const BOOTS = 4;

/** On a machine busy with other things a boot may miss its deadline. A person presses Start again, and so does this. */
export async function comesUp(page: Page, t: TestContext): Promise<void> {
  const state = (name: string) => page.locator(`main [data-state="${name}"]`).first();
  for (let attempt = 1; ; attempt++) {
    await state('running').or(state('failed')).first().waitFor({ timeout: BOOT_MS });
    if (await state('running').isVisible()) return;
    const why = await page.locator('.reason').innerText();
    assert.ok(attempt < BOOTS, `the VM has failed ${BOOTS} times: ${why}`);
    t.diagnostic(`the VM has failed: ${why}`);
    await page.getByRole('button', { name: 'Start', exact: true }).click();
    await state('starting').waitFor();
  }
}
