/** Generations as arguments. */
import { BerthError, type Instance } from '../../../client/src/berth.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';

/** @throws UsageError */
export function generationNumber(text = ''): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new UsageError(`a generation is a number of berth generations NAME, not ${text}`);
}

/** Explains a 404 of a generation: the instance may exist. */
export async function withGeneration<T>(
  { name }: Pick<Instance, 'name'>,
  work: () => Promise<T>,
): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof BerthError) || error.code !== 'NOT_FOUND') throw error;
    throw new CommandError(error.message, { next: `berth generations ${name}`, exit_code: EXIT.not_found });
  }
}
