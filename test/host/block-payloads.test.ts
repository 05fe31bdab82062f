/** Where the NBD server reads payloads into: nobody's bytes are written over while they are looked at. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { NbdClient } from '../../src/host/disk/nbd-client.ts';
import {
  encodeOption,
  encodeRequest,
  encodeString,
  NBD_CMD,
  NBD_OPT,
  NbdError,
} from '../../src/host/disk/nbd-protocol.ts';
import { NbdServer } from '../../src/host/disk/nbd-server.ts';
import { until } from '../support/waiting.ts';

const MIB = 1024 * 1024;
const FLAGS = Buffer.from([0, 0, 0, 3]);
const go = (name: string): Buffer =>
  encodeOption(NBD_OPT.go, Buffer.concat([encodeString(name), Buffer.from([0, 1, 0, 3])]));

let folder: string;
let server: NbdServer;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'berth-payloads-'));
  server = await NbdServer.listen({ path: join(folder, 'nbd.sock') });
});
after(async () => {
  await server.close();
  await rm(folder, { recursive: true, force: true });
});

test('reads no payload into a buffer that an export still uses', async () => {
  const size_bytes = 64 * MIB;
  const received = Buffer.alloc(size_bytes);
  const waiting: (() => void)[] = [];
  server.addExport('late', {
    size_bytes,
    read_only: false,
    min_block_bytes: 512,
    write: async (offset, data) => {
      await new Promise<void>((resolve) => {
        waiting.push(resolve);
        // Some of those under way, in another order than they came: the rest wait for room.
        if (waiting.length === 4) for (const i of [2, 0]) waiting.splice(i, 1)[0]?.();
      });
      data.copy(received, offset);
      waiting.shift()?.();
    },
  });
  const client = await NbdClient.connect({
    path: server.path,
    export_name: 'late',
    in_flight_bytes: size_bytes,
  });
  const sent = randomBytes(size_bytes);
  const writes: Promise<void>[] = [];
  for (let at = 0, i = 0; at < size_bytes; i++) {
    const end = Math.min(size_bytes, at + (i % 2 === 0 ? MIB : MIB >> (i % 5)));
    writes.push(client.write(at, sent.subarray(at, end)));
    at = end;
  }
  const all = Promise.all(writes).then(() => true);
  while (!(await Promise.race([all, new Promise((resolve) => setImmediate(resolve, false))])))
    waiting.shift()?.();
  assert(received.equals(sent));
  await client.disconnect();
  await server.removeExport('late');
});

test("reads payloads into the export's buffers, and releases each once", async () => {
  const free = new Set<Buffer>();
  const lent = new Set<Buffer>();
  const received = Buffer.alloc(8 * MIB);
  let refuses = false;
  server.addExport('with-rooms', {
    size_bytes: received.length,
    read_only: false,
    min_block_bytes: 512,
    rooms: {
      take: (length) => {
        if (length !== MIB) return undefined;
        const room = [...free][0] ?? Buffer.alloc(MIB);
        free.delete(room);
        lent.add(room);
        return room;
      },
      give: (room) => {
        assert(lent.delete(room), 'it was lent');
        free.add(room);
      },
    },
    write: async (offset, data) => {
      assert.equal(lent.has(data), data.length === MIB);
      await new Promise(setImmediate);
      if (refuses) throw new Error('no');
      data.copy(received, offset);
    },
  });
  const client = await NbdClient.connect({ path: server.path, export_name: 'with-rooms' });
  const sent = randomBytes(received.length);
  const writes: Promise<void>[] = [];
  for (let at = 0; at < sent.length; ) {
    const end = Math.min(sent.length, at + (writes.length % 3 === 0 ? MIB / 2 : MIB));
    writes.push(client.write(at, sent.subarray(at, end)));
    at = end;
  }
  await Promise.all(writes);
  assert(received.equals(sent));
  refuses = true;
  await assert.rejects(client.write(0, sent.subarray(0, MIB)), NbdError);
  await client.disconnect();
  assert.equal(lent.size, 0);
  const cut = createConnection(server.path);
  cut.resume();
  const head = encodeRequest({ flags: 0, type: NBD_CMD.write, cookie: 9n, offset: 0n, length: MIB });
  cut.write(Buffer.concat([FLAGS, go('with-rooms'), head, sent.subarray(0, 5_000)]));
  await until('the payload is read', () => lent.size > 0);
  cut.destroy();
  await until('it is given back', () => lent.size === 0);
  await server.removeExport('with-rooms');
});
