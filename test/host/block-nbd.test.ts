/** Our NBD server against QEMU's clients, our client against QEMU's server, and our server against garbage. */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import fc from 'fast-check';
import { NbdClient, NbdProtocolError } from '../../src/host/disk/nbd-client.ts';
import {
  encodeOption,
  encodeRequest,
  encodeString,
  NBD_CMD,
  NBD_OPT,
  NbdError,
  type NbdExport,
} from '../../src/host/disk/nbd-protocol.ts';
import { NbdServer } from '../../src/host/disk/nbd-server.ts';

const run = promisify(execFile);
const MIB = 1024 * 1024;

/** A disk in memory. */
class MemoryDisk implements NbdExport {
  readonly size_bytes: number;
  readonly read_only: boolean;
  readonly min_block_bytes = 512;
  readonly bytes: Buffer;
  flushes = 0;

  constructor(bytes: Buffer, read_only = false) {
    this.bytes = bytes;
    this.size_bytes = bytes.length;
    this.read_only = read_only;
  }
  async read(offset: number, length: number): Promise<Buffer> {
    return Buffer.from(this.bytes.subarray(offset, offset + length));
  }
  async write(offset: number, data: Buffer): Promise<void> {
    data.copy(this.bytes, offset);
  }
  async writeZeroes(offset: number, length: number): Promise<void> {
    this.bytes.fill(0, offset, offset + length);
  }
  async flush(): Promise<void> {
    this.flushes += 1;
  }
}

let folder: string;
let server: NbdServer;
const disk = new MemoryDisk(Buffer.alloc(8 * MIB));
const fixed = new MemoryDisk(randomBytes(3 * MIB), true);
const url = (name: string): string => `nbd+unix:///${name}?socket=${server.path}`;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-nbd-'));
  server = await NbdServer.listen({
    path: join(folder, 'nbd.sock'),
    mode: 0o660,
    uid: process.getuid?.() ?? 0,
    gid: process.getgid?.() ?? 0,
  });
  server.addExport('disk', disk);
  server.addExport('fixed', fixed);
});
after(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

const io = (name: string, ...commands: string[]) =>
  run('qemu-io', ['-f', 'raw', ...commands.flatMap((command) => ['-c', command]), url(name)]);

describe("QEMU's clients", { timeout: 300_000 }, () => {
  test('write, zero, discard and read back through the server', async () => {
    const { stdout } = await io(
      'disk',
      'write -P 0xab 4k 1M',
      'write -z 64k 64k',
      'write -z -u 256k 64k',
      'discard 512k 64k',
      'write -f -P 7 2M 512',
      'flush',
      'read -P 0xab 4k 60k',
      'read -P 0 64k 64k',
      'read -P 0 256k 64k',
      'read -P 7 2M 512',
    );
    assert.doesNotMatch(stdout, /failed|error/i);
    assert.equal(disk.bytes[4096], 0xab);
    assert.equal(disk.bytes[512 * 1024], 0);
    assert(disk.flushes > 0);
  });

  test('copy a whole disk out and in', async () => {
    const [image, copy] = [join(folder, 'in.raw'), join(folder, 'out.raw')];
    const content = Buffer.concat([randomBytes(MIB), Buffer.alloc(5 * MIB), randomBytes(2 * MIB)]);
    await writeFile(image, content);
    await run('qemu-img', ['convert', '-n', '-f', 'raw', '-O', 'raw', image, url('disk')]);
    assert(disk.bytes.equals(content));
    await run('qemu-img', ['convert', '-f', 'raw', '-O', 'raw', url('fixed'), copy]);
    assert(fixed.bytes.equals(await readFile(copy)));
  });

  test('see a read-only export as such', async () => {
    await assert.rejects(io('fixed', 'write 0 512'), /read-only|Permission|not permitted/i);
  });

  test('list the exports', async () => {
    const { stdout } = await run('qemu-nbd', ['--list', '-k', server.path]);
    assert.match(stdout, /'disk'[\s\S]*'fixed'/);
    assert.match(stdout, /max block: 33554432/);
  });

  test('get an error for an unknown export', async () => {
    await assert.rejects(io('nothing', 'read 0 512'), /not available/);
  });
});

test('the socket file has the mode asked for', async () => {
  assert.equal((await stat(server.path)).mode & 0o777, 0o660);
});

describe('the client', { timeout: 300_000 }, () => {
  const daemons: ChildProcess[] = [];
  after(() => {
    for (const daemon of daemons) daemon.kill('SIGKILL');
  });

  async function serve(image: string): Promise<string> {
    const path = join(folder, 'qsd.sock');
    const daemon = spawn('qemu-storage-daemon', [
      ...['--blockdev', `driver=file,filename=${image},node-name=disk,discard=unmap`],
      ...['--nbd-server', `addr.type=unix,addr.path=${path}`],
      ...['--export', 'type=nbd,id=e,node-name=disk,name=disk,writable=on'],
      ...['--chardev', 'stdio,id=qmp', '--monitor', 'chardev=qmp'],
    ]);
    daemons.push(daemon);
    await once(daemon.stdout, 'data'); // the monitor's greeting comes when all is set up
    return path;
  }

  test("does to QEMU's disk what it does to a model", async () => {
    const image = join(folder, 'model.raw');
    const model = randomBytes(4 * MIB);
    await writeFile(image, model);
    const path = await serve(image);
    const client = await NbdClient.connect({ path, export_name: 'disk', in_flight_bytes: MIB });
    assert.equal(client.size_bytes, model.length);
    const action = fc.record({
      op: fc.constantFrom('write', 'zero', 'read'),
      sector: fc.nat({ max: 8_191 }),
      sectors: fc.integer({ min: 1, max: 600 }),
      fill: fc.nat({ max: 255 }),
    });
    const property = fc.asyncProperty(fc.array(action, { maxLength: 20 }), async (actions) => {
      for (const { op, sector, sectors, fill } of actions) {
        const offset = sector * 512;
        const length = Math.min(sectors * 512, model.length - offset);
        if (op === 'write') await client.write(offset, Buffer.alloc(length, fill));
        if (op === 'zero') await client.writeZeroes(offset, length, { no_hole: fill > 127 });
        if (op !== 'read') model.fill(op === 'zero' ? 0 : fill, offset, offset + length);
        assert((await client.read(offset, length)).equals(model.subarray(offset, offset + length)));
      }
    });
    await fc.assert(property, { numRuns: 20 });
    const parts = Array.from({ length: 64 }, (_, i) =>
      client.write(i * 65_536, model.subarray(i * 65_536, (i + 1) * 65_536)),
    );
    await Promise.all(parts);
    await client.flush();
    await client.disconnect();
    assert((await readFile(image)).equals(model));
    const mapped = await NbdClient.connect({ path, export_name: 'disk', allocation: true });
    const extents = await mapped.blockStatus(0, model.length);
    assert(extents.length > 0 && extents.every(({ length }) => length > 0));
    assert((await mapped.read(0, model.length)).equals(model));
    await mapped.disconnect();
  });

  test('gets an error for an unknown export and for a refused request', async () => {
    const { path } = server;
    await assert.rejects(NbdClient.connect({ path, export_name: 'nothing' }), NbdProtocolError);
    const client = await NbdClient.connect({ path, export_name: 'fixed' });
    assert.equal(client.read_only, true);
    await assert.rejects(
      client.write(0, Buffer.alloc(512)),
      (error) => error instanceof NbdError && error.errno === 1,
    );
    assert((await client.read(512, 512)).equals(fixed.bytes.subarray(512, 1024)));
    await client.disconnect();
    await assert.rejects(client.read(0, 512), NbdProtocolError);
  });
});

describe('the server', { timeout: 300_000 }, () => {
  /** Sends bytes and waits until the server hangs up, or all is sent and answered. */
  async function throwAt(bytes: readonly Buffer[]): Promise<void> {
    const socket = createConnection(server.path);
    socket.on('error', () => {});
    socket.resume();
    for (const part of bytes) socket.write(part);
    socket.end();
    await once(socket, 'close');
  }

  const go = (name: string): Buffer =>
    encodeOption(NBD_OPT.go, Buffer.concat([encodeString(name), Buffer.from([0, 1, 0, 3])]));
  const FLAGS = Buffer.from([0, 0, 0, 3]);

  test('outlives any garbage, at every stage', async () => {
    const garbage = fc.uint8Array({ maxLength: 300 }).map((bytes) => Buffer.from(bytes));
    const option = fc.tuple(fc.nat({ max: 12 }), garbage).map(([code, data]) => encodeOption(code, data));
    const request = fc
      .record({
        flags: fc.constantFrom(0, 1, 2, 16, 0xffff),
        type: fc.nat({ max: 9 }),
        cookie: fc.constant(1n),
        offset: fc.oneof(fc.bigInt(0n, 2n ** 64n - 1n), fc.bigInt(0n, 20_000n)),
        length: fc.oneof(fc.nat({ max: 2 ** 32 - 1 }), fc.constantFrom(0, 512, 1024)),
      })
      .map(encodeRequest);
    const property = fc.asyncProperty(
      fc.boolean(),
      fc.array(fc.oneof(garbage, option), { maxLength: 5 }),
      fc.boolean(),
      fc.array(fc.oneof(garbage, request), { maxLength: 8 }),
      async (greeted, options, chosen, requests) => {
        await throwAt([
          ...(greeted ? [FLAGS] : []),
          ...options,
          ...(chosen ? [go('fixed')] : []),
          ...requests,
        ]);
      },
    );
    await fc.assert(property, { numRuns: 300 });
    await fc.assert(
      fc.asyncProperty(fc.array(fc.oneof(request, request, garbage), { maxLength: 12 }), (requests) =>
        throwAt([FLAGS, go('disk'), ...requests]),
      ),
      { numRuns: 200 },
    );
    const client = await NbdClient.connect({ path: server.path, export_name: 'fixed' });
    assert((await client.read(0, MIB)).equals(fixed.bytes.subarray(0, MIB)));
    await client.disconnect();
  });

  test('disconnects on a payload over 32 MiB, and refuses a larger read', async () => {
    const request = (type: number, length: number): Buffer =>
      encodeRequest({ flags: 0, type, cookie: 9n, offset: 0n, length });
    const socket = createConnection(server.path);
    socket.resume();
    socket.write(Buffer.concat([FLAGS, go('disk'), request(NBD_CMD.write, 32 * MIB + 1)]));
    await once(socket, 'end'); // though we did not end
    socket.destroy();
    await throwAt([FLAGS, go('disk'), request(NBD_CMD.read, 32 * MIB + 512)]);
  });

  test('replies EIO for a failing export, and the connection stays open', async () => {
    let calls = 0;
    server.addExport('failing', {
      size_bytes: MIB,
      read_only: false,
      min_block_bytes: 65_536,
      read: async (_offset, length) => {
        if (calls++ === 0) throw new Error('broken');
        return Buffer.alloc(length, 5);
      },
    });
    const client = await NbdClient.connect({ path: server.path, export_name: 'failing' });
    assert.equal(client.min_block_bytes, 65_536);
    await assert.rejects(client.read(0, 65_536), (error) => error instanceof NbdError && error.errno === 5);
    assert.equal((await client.read(0, 65_536))[0], 5);
    await assert.rejects(client.read(512, 512), (error) => error instanceof NbdError && error.errno === 22);
    await client.disconnect();
    await server.removeExport('failing');
  });

  test('stops reading from a client while its writes wait for the export', async () => {
    const gate = Promise.withResolvers<void>();
    let received = 0;
    server.addExport('slow', {
      size_bytes: 1024 * MIB,
      read_only: false,
      min_block_bytes: 512,
      write: async () => {
        received += 1;
        await gate.promise;
      },
    });
    const client = await NbdClient.connect({
      path: server.path,
      export_name: 'slow',
      in_flight_bytes: 1024 * MIB,
    });
    const payload = Buffer.alloc(4 * MIB);
    const writes = Array.from({ length: 40 }, (_, i) => client.write(i * payload.length, payload));
    const probe = await NbdClient.connect({ path: server.path, export_name: 'fixed' });
    for (let i = 0; i < 50; i++) await probe.read(0, MIB); // the server turns many times meanwhile
    assert(received >= 1 && received <= 16, `${received} writes of 4 MiB are held`);
    gate.resolve();
    await Promise.all(writes);
    assert.equal(received, 40);
    await Promise.all([client.disconnect(), probe.disconnect()]);
    await server.removeExport('slow');
  });

  test('replies to requests in flight before it closes', async () => {
    const path = join(folder, 'closing.sock');
    const closing = await NbdServer.listen({ path });
    const gate = Promise.withResolvers<void>();
    const started = Promise.withResolvers<void>();
    closing.addExport('e', {
      size_bytes: MIB,
      read_only: true,
      min_block_bytes: 512,
      read: async (_offset, length) => {
        started.resolve();
        await gate.promise;
        return Buffer.alloc(length, 3);
      },
    });
    const client = await NbdClient.connect({ path, export_name: 'e' });
    const read = client.read(0, 512);
    await started.promise;
    const closed = closing.close();
    gate.resolve();
    assert.equal((await read)[0], 3);
    await closed;
    await assert.rejects(client.read(0, 512), NbdProtocolError);
    await assert.rejects(NbdClient.connect({ path, export_name: 'e' }), { code: 'ENOENT' });
  });
});
