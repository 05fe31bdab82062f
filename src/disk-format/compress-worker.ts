/**
 * The program of a worker thread of compress-pool.ts: packs or unpacks the batch of each request, and sends one reply.
 * Buffers are transferred in both directions.
 */
import { parentPort } from 'node:worker_threads';
import { present } from '../shared/assert.ts';
import { release } from '../shared/release.ts';
import { packBatch, unpackBatch } from './compress-batch.ts';
import type { WorkerReply, WorkerRequest } from './compress-pool.ts';

const port = present(parentPort, 'the port of a worker thread');

port.on('message', (request: WorkerRequest) => {
  const { id } = request;
  const reply = (message: WorkerReply, transfer: ArrayBuffer[] = []): void =>
    port.postMessage(message, transfer);
  try {
    if (request.op === 'pack') {
      const result = packBatch(request.task);
      const { kinds, stored_bytes, marks, hashes, frames, spare } = result;
      const buffers = [kinds, stored_bytes, marks, hashes, frames, ...(spare ? [spare] : [])];
      reply(
        { id, result },
        buffers.map(({ buffer }) => buffer),
      );
    } else {
      const result = unpackBatch(request.task);
      release(request.task.frames);
      reply({ id, result }, result.ok ? [result.blocks.buffer] : []);
    }
  } catch (error) {
    reply({ id, error: error instanceof Error ? error.message : String(error) });
  }
});
