/** Generations as arguments: by number, or by the name that `berth flush --name` gave them. */
import { type Berth, BerthError, type Instance } from '../../../client/src/berth.ts';
import { CommandError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { collect } from '../reading.ts';

/** Digits are a number, also where a generation has them as its name. @throws CommandError for no such name, or several */
export async function generationOf(
  berth: Berth,
  { id, name: instance }: Pick<Instance, 'id' | 'name'>,
  text = '',
): Promise<number> {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  const all = await collect(berth.list('listGenerations', { path: { id }, query: { limit: 200 } }));
  const found = all.filter(({ name }) => name === text);
  const [first] = found;
  if (first === undefined)
    throw new CommandError(`${instance} has no generation called ${text}`, {
      next: `berth generations ${instance}`,
      exit_code: EXIT.not_found,
    });
  if (found.length === 1) return first.generation;
  const numbers = found.map(({ generation }) => generation).join(', ');
  throw new CommandError(`“${text}” stands for several generations of ${instance}: ${numbers}`, {
    next: 'the same with one of these numbers',
    exit_code: EXIT.usage,
  });
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
