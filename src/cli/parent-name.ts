import { type Berth, BerthError } from '../../client/src/berth.ts';

/** The name of the instance that a fork was made of; its id once it is deleted. */
export async function parentName(berth: Berth, id: string): Promise<string> {
  try {
    return (await berth.instances.get(id)).name;
  } catch (error) {
    if (error instanceof BerthError && error.code === 'NOT_FOUND') return id;
    throw error;
  }
}
