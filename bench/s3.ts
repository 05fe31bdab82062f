/**
 * The load on a bucket, and the effect of a slow bucket on a guest. Counts requests and bytes of a flush, and of a start on a
 * host that has no data of the disk. Then measures the longest write of 4 KiB in a guest during a flush to a store that delays
 * each response by 100 ms, compared with the same writes without a flush.
 */
import { readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { pathsIn } from '../src/config/paths.ts';
import { overlayPaths } from '../src/host/vm/overlay.ts';
import { pause } from '../src/shared/retry.ts';
import { type Bench, type BenchContext, type Measured, measured, median } from './figure.ts';
import { bringFio, type FioJob, fio, type InGuest, NO_FIO, packFio } from './fio.ts';
import { type S3Installation, startOnS3, type Traffic, trafficOf } from './s3-installation.ts';
import { makeKey, type SshKey, ssh, untilBanner } from './ssh.ts';

const NOISE_MIB = 64;
const SLOW_MS = 100;
const WHOLE_MS = 300_000;
/** Writes to an existing file through the guest's file system, one at a time, like the log of a database. */
const WRITES: FioJob = {
  ...{ rw: 'randwrite', block_bytes: 4_096, depth: 1, file: '/root/fio-data', file_mib: 64 },
  ...{ seconds: 15, iops_max: 100 },
};

interface Round {
  readonly alone_ms: number;
  readonly during_ms: number;
  readonly flush: Traffic;
  readonly dirty_mib: number;
  readonly start: Traffic;
  readonly whole: Traffic;
}

class Scene {
  readonly #on: S3Installation;
  readonly #id: string;
  readonly #key: SshKey;
  readonly #signal: AbortSignal;

  constructor(on: S3Installation, id: string, key: SshKey, signal: AbortSignal) {
    this.#on = on;
    this.#id = id;
    this.#key = key;
    this.#signal = signal;
  }

  readonly guest: InGuest = async (command, input) => {
    const { api } = this.#on.installation;
    const options = { key: this.#key, signal: this.#signal, ...(input === undefined ? {} : { input }) };
    return ssh(await api.ssh(this.#id), command, options);
  };

  async start(): Promise<void> {
    const { api } = this.#on.installation;
    await api.startVm(this.#id);
    await api.untilRunning(this.#id);
    await untilBanner(await api.ssh(this.#id), this.#signal);
  }

  async #noise(): Promise<void> {
    await this.guest(`head -c ${NOISE_MIB}M /dev/urandom > /root/noise; sync`);
  }

  async round(): Promise<Round> {
    const { installation, proxy } = this.#on;
    const { api } = installation;
    await this.#noise();
    await api.flush(this.#id);
    const alone = await fio(this.guest, WRITES);
    await this.#noise();
    proxy.poison(() => ({ delay_ms: SLOW_MS }));
    await this.guest(`touch -d @0 ${WRITES.file}`);
    const writing = fio(this.guest, WRITES);
    // Awaited below. An earlier failure is reported first.
    writing.catch(() => undefined);
    // fio starts slowly; the flush must run during its writes.
    const begun = this.guest(`until [ "$(stat -c %Y ${WRITES.file})" != 0 ]; do sleep 0.1; done`);
    await Promise.race([writing, begun]);
    const receipt = await api.flush(this.#id);
    const flush = trafficOf(proxy.seen);
    const during = await writing;
    proxy.heal();
    await api.stopVm(this.#id);
    const { overlay, sidecar } = overlayPaths(pathsIn(installation.data_dir).overlays, this.#id);
    await rm(sidecar);
    await rm(overlay);
    proxy.heal();
    await this.start();
    await this.guest('true');
    const start = trafficOf(proxy.seen);
    await this.#whole(sidecar);
    const whole = trafficOf(proxy.seen);
    const dirty_mib = receipt.dirty_bytes / 2 ** 20;
    return { alone_ms: alone.worst_ms, during_ms: during.worst_ms, flush, dirty_mib, start, whole };
  }

  async #whole(sidecar: string): Promise<void> {
    const until_ms = performance.now() + WHOLE_MS;
    while (!(JSON.parse(readFileSync(sidecar, 'utf8')) as { filled: boolean }).filled) {
      if (performance.now() > until_ms) throw new Error('the overlay does not become whole');
      if (!(await pause(200, this.#signal))) this.#signal.throwIfAborted();
    }
  }
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { scratch_dir, runs, signal, say } = context;
  const packed = await packFio(scratch_dir);
  if (!packed) {
    say(`left out: ${NO_FIO}`);
    return [];
  }
  await using on = await startOnS3(context);
  const { api } = on.installation;
  const key = await makeKey(scratch_dir);
  await api.addKey('bench-s3', key.public_key);
  const { id } = await api.createInstance('s3');
  const scene = new Scene(on, id, key, signal);
  await scene.start();
  await bringFio(scene.guest, packed);
  await scene.guest(`dd if=/dev/urandom of=${WRITES.file} bs=1M count=${WRITES.file_mib} status=none; sync`);
  const rounds: Round[] = [];
  for (let number = 0; number <= runs; number++) {
    const done = await scene.round();
    const { alone_ms, during_ms, flush, dirty_mib, start, whole } = done;
    say(
      `round ${number}${number === 0 ? ' (not counted)' : ''}: worst write ${during_ms.toFixed(1)} ms during a flush, ${alone_ms.toFixed(1)} ms without; ` +
        `flush of ${dirty_mib.toFixed(0)} MiB: ${told(flush)}; start: ${told(start)}; until whole: ${told(whole)}`,
    );
    if (number > 0) rounds.push(done);
  }
  await api.deleteInstance(id);
  return figures(rounds);
}

function told({ requests, sent_mib, fetched_mib }: Traffic): string {
  return `${requests} requests, ${sent_mib.toFixed(1)} MiB up, ${fetched_mib.toFixed(1)} MiB down`;
}

function figures(rounds: readonly Round[]): Measured[] {
  const of = (pick: (round: Round) => number) => rounds.map(pick);
  return [
    measured({
      ...{ bench: 's3', figure: 'worst_write_in_slow_flush', unit: 'ms', values: of((r) => r.during_ms) },
      ...{ beside: 'the same without a flush', beside_values: of((r) => r.alone_ms) },
      remark: `4 KiB, one at a time, ${WRITES.iops_max} a second; each request to the store ${SLOW_MS} ms late`,
    }),
    measured({
      ...{
        bench: 's3',
        figure: 'flush_sent',
        unit: 'MiB',
        values: of((r) => r.flush.sent_mib),
      },
      ...{ beside: 'dirty', beside_values: of((r) => r.dirty_mib) },
      remark: `${median(of((r) => r.flush.requests))} requests`,
    }),
    measured({
      ...{ bench: 's3', figure: 'cold_start_fetched', unit: 'MiB', values: of((r) => r.start.fetched_mib) },
      ...{ beside: 'until the overlay is complete', beside_values: of((r) => r.whole.fetched_mib) },
      remark: `${median(of((r) => r.start.requests))} requests to the first ssh, ${median(of((r) => r.whole.requests))} until whole`,
    }),
  ];
}

export const s3Bench: Bench = {
  name: 's3',
  summary: `requests and bytes of a flush and of a cold start; the worst write beside a flush to a store ${SLOW_MS} ms late`,
  run,
};
