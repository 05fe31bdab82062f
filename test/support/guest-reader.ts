/** A program in the guest that reads a file from its disk repeatedly and counts wrong contents. */
import assert from 'node:assert/strict';
import type { GuestInstance } from './guest-instance.ts';

const SCRIPT = `#!/bin/bash
rm -f /run/reader.*
n=0
while [ ! -e /run/reader.stop ]; do
  n=$((n + 1))
  echo 3 > /proc/sys/vm/drop_caches
  sha256sum --quiet -c "$1" > /run/reader.said 2>&1 || cat /run/reader.said >> /run/reader.errors
  echo $n > /run/reader.count
done
echo $n > /run/reader.ended
`;

export class GuestReader {
  readonly #guest: GuestInstance;

  private constructor(guest: GuestInstance) {
    this.#guest = guest;
  }

  /** Reads the files in `sums`, a list in the format of sha256sum. */
  static async start(guest: GuestInstance, sums: string): Promise<GuestReader> {
    await guest.sh(
      'cat > /run/reader && chmod 755 /run/reader && ' +
        `{ setsid /run/reader ${sums} < /dev/null > /dev/null 2>&1 & }`,
      SCRIPT,
    );
    return new GuestReader(guest);
  }

  /** Ends it. Fails if a read failed or returned wrong bytes. Returns how often it read everything. */
  async stop(): Promise<number> {
    const told = await this.#guest.shAgain(
      'touch /run/reader.stop; until [ -s /run/reader.ended ]; do sleep 0.1; done; cat /run/reader.ended; ' +
        'cat /run/reader.errors 2> /dev/null || true',
    );
    assert.match(told, /^[0-9]+$/, 'no read was refused or wrong');
    return Number(told);
  }
}
