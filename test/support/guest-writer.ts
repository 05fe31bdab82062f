/**
 * A program in the guest that writes and fsyncs again and again, and counts failures. It pauses between two writes,
 * because a busy guest takes a whole processor from the other tests.
 */
import assert from 'node:assert/strict';
import type { GuestInstance } from './guest-instance.ts';
import { untilWorks } from './waiting.ts';

/** 74: fsync. */
const SCRIPT = `#!/usr/bin/perl
use strict; use warnings;
sub note { my ($how, $name, $text) = @_; open my $file, $how, "/run/writer.$name" or die; print $file "$text\n"; close $file }
unlink glob '/run/writer.*';
open my $random, '<:raw', '/dev/urandom' or die;
my $n = 0;
while (!-e '/run/writer.stop') {
  $n++;
  sysread $random, my $data, 524288;
  my $path = '/srv/writer.' . $n % 8;
  my $done = open(my $file, -e $path ? '+<:raw' : '>:raw', $path);
  $done &&= (syswrite($file, $data) // 0) == length $data && syscall(74, fileno $file) == 0 && close $file;
  note('>>', 'errors', "$n: $!") unless $done;
  note('>', 'count', $n);
  select undef, undef, undef, 0.1;
}
note('>', 'ended', $n);
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

  /** Over the open connection if it still works: a new one takes four times the processor time, and callers ask repeatedly. */
  async count(): Promise<number> {
    return Number(await untilWorks('the count', () => this.#guest.sh('cat /run/writer.count')));
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
