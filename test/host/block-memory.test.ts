/**
 * What the agent holds at most while a large flush, or reads of a large disk, go through it as fast as they can: a process
 * started as the launcher starts the agent, with all of its code, and its peak as the kernel tells it.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, fork } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { NbdClient } from '../../src/host/disk/nbd-client.ts';
import { AGENT_ENV, AGENT_FLAGS, compiledSources } from '../../src/launcher/machine.ts';
import type { S3Settings } from '../../src/object-store/s3-store.ts';
import type { SubjectTask } from '../support/memory-subject.ts';
import { S3Server } from '../support/s3-server.ts';

const MIB = 2 ** 20;
const MOST_MIB = 200;
/** The peak is reached after the spool was filled once; BERTH_TEST_MEMORY_MIB=512 for what the design names. */
const DISK_MIB = Number(process.env['BERTH_TEST_MEMORY_MIB'] ?? 192);
/** As QEMU asks: sixteen requests of a MiB at once. */
const AT_ONCE = 16;
const BLOCK = 65_536;

class Subject {
  readonly #child: ChildProcess;
  readonly #folder: string;

  constructor(child: ChildProcess, folder: string) {
    this.#child = child;
    this.#folder = folder;
  }

  static async start(s3: S3Settings | null): Promise<Subject> {
    const project = join(import.meta.dirname, '..', '..');
    const program = join(project, 'test', 'support', 'memory-subject.ts');
    const env = { ...(await compiledSources(project, process.env)), ...AGENT_ENV };
    const folder = mkdtempSync(join(tmpdir(), 'berth-memory-'));
    const task: SubjectTask = { size_bytes: DISK_MIB * MIB, s3, folder };
    const child = fork(program, [JSON.stringify(task)], { execArgv: [...AGENT_FLAGS], env });
    return new Subject(child, folder);
  }

  async answer<T>(): Promise<T> {
    const ended = once(this.#child, 'exit').then(([code]) => assert.fail(`it ended with ${code}`));
    const [message] = await Promise.race([once(this.#child, 'message'), ended]);
    return message as T;
  }

  async disk(): Promise<NbdClient> {
    const { listening } = await this.answer<{ listening: string }>();
    const in_flight_bytes = (AT_ONCE + 1) * MIB;
    return NbdClient.connect({ path: listening, export_name: 'disk', in_flight_bytes });
  }

  goOn(): void {
    this.#child.send('go on');
  }

  /** MiB, the most since the last call. */
  peak(): number {
    const status = readFileSync(`/proc/${this.#child.pid}/status`, 'utf8');
    writeFileSync(`/proc/${this.#child.pid}/clear_refs`, '5');
    return Math.round(Number(/^VmHWM:\s+([0-9]+) kB$/m.exec(status)?.[1]) / 1024);
  }

  async end(): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      const exited = once(this.#child, 'exit');
      this.#child.disconnect();
      this.#child.kill('SIGKILL');
      await exited;
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

async function atOnce(work: (mib: number) => Promise<void>): Promise<void> {
  let next = 0;
  const worker = async () => {
    for (let mib = next++; mib < DISK_MIB; mib = next++) await work(mib);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

describe('the memory of the agent', { timeout: 300_000 }, () => {
  let s3: S3Server;
  before(async () => {
    s3 = await S3Server.start();
  });
  after(() => s3?.close());

  for (const kind of ['a folder', 'a bucket'] as const) {
    test(`stays below ${MOST_MIB} MiB in a flush to ${kind} and in reads from it`, async (t) => {
      const subject = await Subject.start(kind === 'a folder' ? null : await s3.bucket());
      t.after(() => subject.end());
      const noise = randomBytes(4 * MIB);
      const target = await subject.disk();
      subject.peak();
      await atOnce(async (mib) => {
        const data = Buffer.from(noise.subarray((mib % 4) * MIB, ((mib % 4) + 1) * MIB));
        for (let at = 0; at < MIB; at += BLOCK) data.writeUInt32LE(mib, at);
        await target.write(mib * MIB, data);
      });
      await target.disconnect();
      subject.goOn();
      const { flushed } = await subject.answer<{ flushed: number }>();
      assert(flushed > 1, 'several segments');
      const flush_mib = subject.peak();
      subject.goOn();
      const disk = await subject.disk();
      await atOnce(async (mib) => {
        const data = await disk.read(mib * MIB, MIB);
        assert.equal(data.readUInt32LE(15 * BLOCK), mib);
        assert.equal(
          Buffer.compare(
            data.subarray(4, BLOCK),
            noise.subarray((mib % 4) * MIB + 4, (mib % 4) * MIB + BLOCK),
          ),
          0,
        );
      });
      await disk.disconnect();
      const read_mib = subject.peak();
      t.diagnostic(`${DISK_MIB} MiB: ${flush_mib} MiB in the flush, ${read_mib} MiB in the reads`);
      assert(flush_mib < MOST_MIB, `${flush_mib} MiB in the flush`);
      assert(read_mib < MOST_MIB, `${read_mib} MiB in the reads`);
    });
  }
});
