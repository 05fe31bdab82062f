/** A change that depends on the present state: read, change, and read again if somebody else changed it in between. */
import { type Answer, type Berth, BerthError, type Input, type OperationId } from '../../client/src/berth.ts';

const TRIES = 10;

/** @param change makes one call with `if_match` */
export async function changeCurrent<K extends OperationId, T>(
  berth: Berth,
  read: K,
  input: Input<K>,
  change: (now: Answer<K>, if_match: string | undefined) => Promise<T>,
): Promise<T> {
  for (let tried = 1; ; tried++) {
    let etag: string | undefined;
    const onEtag = (read_etag: string) => {
      etag = read_etag;
    };
    const answer = await berth.call(read, input, { onEtag });
    try {
      return await change(answer, etag);
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'PRECONDITION_FAILED' || tried === TRIES)
        throw error;
    }
  }
}
