/** A program in the guest that writes and fsyncs continuously and counts failures. */
import assert from 'node:assert/strict';
import type { GuestInstance } from './guest-instance.ts';

const SCRIPT = `#!/bin/bash
rm -f /run/writer.*
n=0
while [ ! -e /run/writer.stop ]; do
  n=$((n + 1))
  dd if=/dev/urandom of=/srv/writer.$((n % 8)) bs=64k count=8 conv=fsync,notrunc 2>> /run/writer.log || echo $n >> /run/writer.errors
  echo $n > /run/writer.count
done
echo $n > /run/writer.ended
`;

export class GuestWriter {
  readonly #guest: GuestInstance;

  private constructor(guest: GuestInstance) {
    this.#guest = guest;
  }

  static async start(guest: GuestInstance): Promise<GuestWriter> {
    await guest.sh('cat > /usr/local/bin/writer && chmod 755 /usr/local/bin/writer', SCRIPT);
    await guest.sh(
      'setsid writer < /dev/null > /dev/null 2>&1 & until [ -s /run/writer.count ]; do sleep 0.1; done',
    );
    return new GuestWriter(guest);
  }

  async count(): Promise<number> {
    return Number(await this.#guest.shAgain('cat /run/writer.count'));
  }

  /** Ends it. Fails if a write failed or the file system is damaged. Returns how often it wrote. */
  async stop(): Promise<number> {
    const told = await this.#guest.shAgain(
      'touch /run/writer.stop; until [ -s /run/writer.ended ]; do sleep 0.1; done; cat /run/writer.ended; ' +
        'cat /run/writer.errors 2> /dev/null; dmesg | grep -iE "I/O error|remount|EXT4-fs (error|warning)" || true',
    );
    assert.match(told, /^[0-9]+$/, 'no write was refused');
    return Number(told);
  }
}
