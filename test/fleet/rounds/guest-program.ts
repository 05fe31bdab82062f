/**
 * What guests do: a program that starts at each boot, writes a numbered record, fsyncs it, and then reports it on the console. Records
 * rotate through 16 blocks, so the disk holds the last 16, and at most one more that is not reported. It reads others back from
 * the disk. At its start it says which the newest one is, and continues after that.
 *
 *     @@ B BOOT NEWEST STATE      repeated, because consoles lose output while nobody reads them
 *     @@ R BOOT NUMBER            fsynced
 *     @@ E BOOT NUMBER WHAT
 */
export const SLOTS = 16;
const RECORD_BYTES = 4_096;
const MAGIC = 'BERTHREC';

/** 74: fsync, 221: fadvise, whose advice 4 drops the pages, so that the next read comes from the disk. */
const RECORDER = `#!/usr/bin/perl
use strict; use warnings; $| = 1;
my ($slots, $size, $path) = (${SLOTS}, ${RECORD_BYTES}, '/srv/records');
open my $id, '<', '/proc/sys/kernel/random/boot_id' or die; my $boot = substr(scalar(<$id>), 0, 8);
my $n = 0;
sub failed { print "\\n@@ E $boot $n @_: $!\\n"; exit 1 }
sub block { return pack('a8Q<', '${MAGIC}', $_[0]) x ($size / 16) }
my $empty = "\\0" x $size;
if (!-e $path || -s $path != $slots * $size) {
  open my $new, '>:raw', "$path.new" or failed('create'); print $new $empty x $slots; close $new or failed('close');
  rename "$path.new", $path; system 'sync';
}
open my $file, '+<:raw', $path or failed('open');
sub slot {
  my $at = shift;
  syscall(221, fileno $file, 0, 0, 4);
  sysseek $file, $at * $size, 0;
  (sysread($file, my $data, $size) // 0) == $size or failed("read $at");
  return 0 if $data eq $empty;
  my (undef, $number) = unpack 'a8Q<', $data;
  return $data eq block($number) ? $number : -1;
}
sub expected { my ($at, $newest) = @_; my $number = $newest - ($newest - $at) % $slots; return $number < 1 ? 0 : $number }
my @found = map { slot($_) } 0 .. $slots - 1;
for (@found) { $n = $_ if $_ > $n }
my ($newest, $state) = ($n, 'ok');
for my $at (0 .. $slots - 1) {
  next if $at == ($n + 1) % $slots;
  $state = "slot $at has $found[$at]" if $found[$at] != expected($at, $n);
}
my $told = 0;
while (1) {
  print "\\n@@ B $boot $newest $state\\n" if $told++ % 20 == 0;
  $n++;
  sysseek $file, $n % $slots * $size, 0;
  (syswrite($file, block($n)) // 0) == $size && syscall(74, fileno $file) == 0 or failed('write');
  print "\\n@@ R $boot $n\\n";
  my $at = ($n * 7 + 3) % $slots;
  my $read = slot($at);
  print "\\n@@ E $boot $n slot $at has $read\\n" if $read != expected($at, $n);
  select undef, undef, undef, 0.4;
}
`;

/** The script of the first boot: it lets the program start at each. */
export const FIRST_BOOT = `#!/bin/sh
cat > /usr/local/bin/recorder <<'END'
${RECORDER}END
cat > /etc/rc.local <<'END'
#!/bin/sh
setsid /usr/local/bin/recorder < /dev/null > /dev/ttyS0 2>&1 &
END
chmod 755 /usr/local/bin/recorder /etc/rc.local
sync
/etc/rc.local
`;

export interface Report {
  readonly kind: 'B' | 'R' | 'E';
  readonly boot_id: string;
  readonly number: number;
  readonly text: string;
}

/** A line of a console; null: somebody else's, or damaged. */
export function reportIn(line: string): Report | null {
  const [, kind, boot_id = '', number, text = ''] =
    /^@@ ([BRE]) ([0-9a-f]{8}) ([0-9]+)(?: (.*?))?\r?$/.exec(line) ?? [];
  if (kind === undefined || (kind !== 'R' && text === '')) return null;
  return { kind: kind as Report['kind'], boot_id, number: Number(number), text };
}

/** The newest record in a piece of a disk; 0: none. */
export function newestIn(bytes: Buffer): number {
  let newest = 0;
  for (let at = 0; at + RECORD_BYTES <= bytes.length; at += RECORD_BYTES) {
    const block = bytes.subarray(at, at + RECORD_BYTES);
    if (block.toString('latin1', 0, 8) !== MAGIC) continue;
    const first = block.subarray(0, 16);
    const whole = Buffer.alloc(RECORD_BYTES, first).equals(block);
    if (whole) newest = Math.max(newest, Number(first.readBigUInt64LE(8)));
  }
  return newest;
}
