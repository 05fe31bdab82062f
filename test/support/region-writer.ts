/**
 * A program in the guest that writes to a region of its disk below the file system, and reports to the oracle
 * (`region-oracle.ts`). It writes without a FLUSH, zeroes and discards ranges, and sends a FLUSH now and then, or
 * never.
 *
 * The region is the only extent of an allocated but unwritten file, so nothing else changes it.
 */
import assert from 'node:assert/strict';
import type { GuestInstance } from './guest-instance.ts';
import { BLOCK_BYTES, type BlockContent, RegionOracle, readRegion } from './region-oracle.ts';
import type { RunningSsh } from './ssh-client.ts';

const REGION_BYTES = 8 * 2 ** 20;
const FILE = '/srv/region';

/**
 * FIRST and COUNT in blocks of 4 KiB; the percentages of FLUSHes and of discards; zeroings are as frequent as discards.
 * `sync_file_range` writes without a FLUSH. A zeroing or discard leaves no number on the disk, so it waits until its report has
 * been received. After some hundred operations it slows down: during long work a busy guest would take a whole processor from
 * the other tests.
 */
const WRITER = `#!/usr/bin/perl
use strict; $| = 1;
my ($first, $count, $seed, $flush, $discard, $number) = @ARGV;
my $unhurried = $number + 400;
srand($seed);
open(my $disk, '+<', '/dev/vda') or die; binmode $disk;
sub failed { print "E $_[0] $!\\n"; exit 1 }
while (1) {
  my $chance = rand(100);
  if ($chance < $flush) { syscall(74, fileno $disk) == 0 or failed('fsync'); print "F $number\\n"; next }
  my $blocks = 1 + int(rand(rand() < 0.2 ? 64 : 8));
  my $at = int(rand($count - $blocks));
  my ($offset, $length) = (($first + $at) * 4096, $blocks * 4096);
  $number++;
  my ($kind, $request) = $chance < $flush + $discard ? ('d', 0x1277) : ('z', 0x127f);
  if ($chance < $flush + 2 * $discard) {
    print "$kind $number $at $blocks\\n";
    defined(<STDIN>) or exit 1;
    ioctl($disk, $request, pack('Q2', $offset, $length)) or failed($kind);
  } else {
    print "w $number $at $blocks\\n";
    my $data = join '', map { pack('Q2', $number, $at + $_) x 256 } 0 .. $blocks - 1;
    sysseek($disk, $offset, 0);
    (syswrite($disk, $data) // 0) == $length or failed('write');
    syscall(277, fileno $disk, $offset, $length, 7) == 0 or failed('write out');
  }
  print "A $number\\n";
  select undef, undef, undef, 0.02 if $number > $unhurried;
}
`;
const INSTALL = `cat > /usr/local/bin/region && chmod 755 /usr/local/bin/region &&
rm -f ${FILE} && fallocate -l ${REGION_BYTES} ${FILE} && sync && filefrag -v ${FILE}`;

export class RegionWriter {
  readonly guest: GuestInstance;
  readonly oracle = new RegionOracle(REGION_BYTES / BLOCK_BYTES);
  /** The region's offset on the disk. */
  readonly offset_bytes: number;
  readonly bytes = REGION_BYTES;
  #running: RunningSsh | undefined;
  #heard = 0;
  #failure: Error | undefined;
  #listening: NodeJS.Timeout | undefined;

  private constructor(guest: GuestInstance, offset_bytes: number) {
    this.guest = guest;
    this.offset_bytes = offset_bytes;
  }

  static async install(guest: GuestInstance): Promise<RegionWriter> {
    const told = await guest.sh(INSTALL, WRITER);
    const extents = [...told.matchAll(/^ +\d+: +0\.\. +\d+: +(\d+)\.\. *\d+: +(\d+):/gm)];
    const [, first, blocks] = extents[0] ?? [];
    assert.equal(Number(blocks) * BLOCK_BYTES, REGION_BYTES, `the region is one extent: ${told}`);
    return new RegionWriter(guest, Number(first) * BLOCK_BYTES);
  }

  get writing(): boolean {
    return this.#running?.running() ?? false;
  }

  /** `flush` and `discard`: percentages of the operations. */
  async start(seed: number, { flush, discard }: { flush: number; discard: number }): Promise<void> {
    const first = this.offset_bytes / BLOCK_BYTES;
    const words = [first, this.oracle.blocks, seed, flush, discard, this.oracle.issued + 1_000];
    this.#heard = 0;
    this.#failure = undefined;
    this.#running = this.guest.installation.ssh.start(this.guest.target, {
      command: `exec region ${words.join(' ')}`,
    });
    this.#listening = setInterval(() => this.#take(), 20);
  }

  /** Passes its reports so far to the oracle. Fails when the guest has seen an error. */
  listen(): RegionOracle {
    this.#take();
    if (this.#failure !== undefined) throw this.#failure;
    return this.oracle;
  }

  #take(): void {
    // Skips messages of ssh.
    const printed = (this.#running?.printed() ?? '').split('\n').slice(0, -1);
    const lines = printed.filter((line) => /^[wzdAFE] /.test(line));
    for (const line of lines.slice(this.#heard)) {
      if (line.startsWith('E ')) this.#failure ??= new Error(`the guest has seen: ${line}`);
      else this.oracle.hear(line);
      if (/^[zd]/.test(line)) this.#running?.send('\n');
    }
    this.#heard = lines.length;
  }

  /** Ends it, also in the guest if that still runs. */
  async stop(): Promise<void> {
    this.#running?.kill();
    await this.#running?.ended;
    clearInterval(this.#listening);
    this.listen();
    this.#running = undefined;
    await this.#endInGuest();
  }

  /** It may outlive the connection, above all in a suspended guest. */
  async #endInGuest(): Promise<void> {
    await this.guest
      .sh("pkill -f '[b]in/region'; while pgrep -f '[b]in/region' > /dev/null; do sleep 0.05; done")
      .catch(() => '');
  }

  /** Reads the region in the guest. Ends a running writer. */
  async read(): Promise<BlockContent[]> {
    await this.#endInGuest();
    const { ssh } = this.guest.installation;
    const skip = this.offset_bytes / BLOCK_BYTES;
    const told = await ssh.output(
      this.guest.target,
      `echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vda bs=4k skip=${skip} count=${this.oracle.blocks} status=none | gzip -1 | base64 -w0`,
    );
    const { gunzipSync } = await import('node:zlib');
    return readRegion(gunzipSync(Buffer.from(told, 'base64')));
  }
}
