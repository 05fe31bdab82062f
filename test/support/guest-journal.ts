/**
 * A program in the guest that writes numbered records, fsyncs each, reports it over ssh, and reads other records back.
 * Its reports tell what the disk must hold. They are kept outside of the guest, where a crash does not reach them.
 *
 * Records rotate through 16 slots, each with its hash. So the disk always holds the last 16 records, and at most one
 * more that was being written and not yet reported. A few long files, named by their hashes, make a flush take some
 * time.
 */
import assert from 'node:assert/strict';
import type { GuestInstance } from './guest-instance.ts';
import type { RunningSsh } from './ssh-client.ts';

const SLOTS = 16;
const WRITER = `#!/bin/bash
mkdir -p /srv/journal
n=$1
while :; do
  { printf %016d $n; head -c 49152 /dev/urandom; } > /run/record
  { sha256sum < /run/record | head -c 64; cat /run/record; } > /run/sealed
  dd if=/run/sealed of=/srv/journal/$((n % ${SLOTS})) bs=64k conv=fsync,notrunc status=none || { echo "E write $n"; exit 1; }
  echo $n
  other=/srv/journal/$(((n * 7 + 3) % ${SLOTS}))
  if [ -e $other ]; then
    dd if=$other of=/run/read bs=64k iflag=direct status=none || { echo "E read $other"; exit 1; }
    [ "$(head -c 64 /run/read)" = "$(tail -c +65 /run/read | sha256sum | head -c 64)" ] || { echo "E wrong $other"; exit 1; }
  fi
  n=$((n + 1))
done
`;
const LONG_FILE = `mkdir -p /srv/long && cd /srv/long && rm -f new && head -c 16M /dev/urandom > new && sync new &&
mv new $(sha256sum < new | head -c 64) && ls -t | tail -n +3 | xargs -r rm`;
const READER = `for f in /srv/long/????????*; do [ -e $f ] || continue
[ "$(sha256sum < $f | head -c 64)" = "\${f##*/}" ] || echo "E wrong $f"; done
for s in $(seq 0 ${SLOTS - 1}); do f=/srv/journal/$s; [ -e $f ] || continue
if [ "$(head -c 64 $f)" = "$(tail -c +65 $f | sha256sum | head -c 64)" ]; then echo $s $((10#$(tail -c +65 $f | head -c 16))); else echo $s torn; fi; done
dmesg | grep -E 'I/O error|EXT4-fs (error|warning)' | head -n 3 | sed 's/^/E /'`;

export class GuestJournal {
  readonly #guest: GuestInstance;
  #writer: RunningSsh | undefined;
  #acknowledged = 0;

  constructor(guest: GuestInstance) {
    this.#guest = guest;
  }

  /** The newest record whose fsync was acknowledged. Fails when the guest has seen an error. */
  get acknowledged(): number {
    const lines = (this.#writer?.printed() ?? '').split('\n').slice(0, -1);
    const refused = lines.find((line) => line.startsWith('E '));
    assert.equal(refused, undefined, `the guest has seen: ${refused}`);
    const last = lines.findLast((line) => /^[0-9]+$/.test(line));
    this.#acknowledged = Math.max(this.#acknowledged, Number(last ?? 0));
    return this.#acknowledged;
  }

  get writing(): boolean {
    return this.#writer?.running() ?? false;
  }

  async start(): Promise<void> {
    const first = (await this.verify(0)) + 1;
    await this.#guest.shAgain(
      `cat > /usr/local/bin/journal <<'END'\n${WRITER}END\nchmod 755 /usr/local/bin/journal`,
    );
    this.#writer = this.#guest.installation.ssh.start(this.#guest.target, {
      command: `exec journal ${first}`,
    });
  }

  /** 16 MiB of noise, which no later flush can skip, in place of the oldest of a few. */
  async addLongFile(): Promise<void> {
    await this.#guest.shAgain(LONG_FILE);
  }

  /** Ends the writer, before the guest is stopped or its disk is checked. */
  async stop(): Promise<number> {
    const acknowledged = this.acknowledged;
    this.#writer?.kill();
    await this.#writer?.ended;
    this.#writer = undefined;
    // The process in the guest may outlive the connection. The pattern does not match the shell of this command itself.
    await this.#guest
      .sh("pkill -f '[b]in/journal'; while pgrep -f '[b]in/journal' > /dev/null; do sleep 0.05; done")
      .catch(() => '');
    return acknowledged;
  }

  /** Verifies the disk while no writer runs: no record is torn, and the newest one is at least `covered`. Returns the newest. */
  async verify(covered: number): Promise<number> {
    const lines = (await this.#guest.shAgain(`bash -c '${READER.replaceAll("'", `'\\''`)}'`))
      .split('\n')
      .filter(Boolean);
    assert(!lines.some((line) => line.startsWith('E ')), lines.join('\n'));
    const slots = lines
      .map((line) => line.split(' '))
      .map(([slot, number]) => [Number(slot), Number(number)] as const);
    const newest = Math.max(0, ...slots.map(([, number]) => (Number.isNaN(number) ? 0 : number)));
    assert(newest >= covered, `record ${covered} is covered, ${newest} is the newest on the disk`);
    for (const [slot, number] of slots) {
      if (slot === (newest + 1) % SLOTS) continue;
      assert(
        number > newest - SLOTS && number % SLOTS === slot,
        `slot ${slot} has ${number}, the newest is ${newest}:\n${lines.join('\n')}`,
      );
    }
    // Unacknowledged records may be lost, so numbers continue from the newest one on the disk.
    this.#acknowledged = newest;
    return newest;
  }
}
