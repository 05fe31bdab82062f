/** The memory of a template, opened for a launch and loaded into its QEMU. */
import type { FileHandle } from 'node:fs/promises';
import { messageOf } from '../../shared/errors.ts';
import type { HostContext } from '../host-context.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import type { Template } from '../template/template-files.ts';
import { loadTemplate } from '../template/wake-machine.ts';

/** The template failed and its machine is gone: boot without it. */
export class TemplateError extends Error {
  override name = 'TemplateError';
  readonly template: Template;

  constructor(template: Template, cause: unknown) {
    super(messageOf(cause), { cause });
    this.template = template;
  }
}

export interface TemplateMemory extends AsyncDisposable {
  readonly template: Template;
  readonly file: FileHandle;
  readonly verified: Promise<void>;
}

/** @throws TemplateError */
export async function openTemplateMemory(
  { templates }: HostContext,
  template: Template,
): Promise<TemplateMemory> {
  try {
    const { file, verified } = await templates.open(template);
    const close = async () => {
      // The verification reads the file.
      await verified.catch(() => undefined);
      await file.close();
    };
    return { template, file, verified, [Symbol.asyncDispose]: close };
  } catch (error) {
    throw new TemplateError(template, error);
  }
}

/** @throws TemplateError, or the signal's reason */
export async function loadTemplateMemory(
  { template, verified }: TemplateMemory,
  into: { readonly qmp: QmpClient; readonly qemu_log: string; readonly signal: AbortSignal },
): Promise<void> {
  try {
    await loadTemplate(template, verified, into);
  } catch (error) {
    into.signal.throwIfAborted();
    throw new TemplateError(template, error);
  }
}
