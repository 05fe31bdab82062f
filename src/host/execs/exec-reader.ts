/**
 * A stream to a reader of an exec's output, which may also send input. It carries the frames of `protocol/exec-types.ts`. An
 * attached reader holds up the exec when it is slow, as a terminal does, and for a while after it was lost.
 */
import { once } from 'node:events';
import type { Duplex } from 'node:stream';
import {
  FRAME,
  offsetBytes,
  type StreamFrame,
  StreamFrames,
  streamFrame,
} from '../../protocol/exec-types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Exec, Send } from './exec.ts';
import { TO_GUEST } from './exec-channel.ts';
import { reportOf } from './host-execs.ts';

export interface Reading {
  readonly instance_id: InstanceId;
  readonly exec: Exec;
  /** To the exec in the guest. */
  readonly send: Send;
  readonly offset: number;
  readonly follow: boolean;
  readonly attached: boolean;
  readonly input: boolean;
}

/** Until the end of the output, or of the stream; without `follow` until what was there at the beginning. */
export async function serveReader(stream: Duplex, reading: Reading): Promise<void> {
  const { instance_id, exec, send, follow, attached } = reading;
  const gone = new AbortController();
  const reader = { offset: Math.max(reading.offset, exec.output.start) };
  const until = follow ? Number.POSITIVE_INFINITY : exec.output.end;
  const leave = exec.addReader();
  const endWait = attached ? exec.waitFor(reader, send) : () => undefined;
  stream.on('error', () => stream.destroy());
  stream.on('close', () => gone.abort());
  stream.on('end', () => stream.destroy());
  const input = reading.input ? exec.addInputStream() : null;
  let left = false;
  takeInput(stream, reading, gone.signal, (type) => {
    if (type === FRAME.input) input?.noteInput();
    if (type === FRAME.leave) left = true;
  });
  const write = async (frame: Buffer): Promise<void> => {
    if (!stream.write(frame)) await once(stream, 'drain', { signal: gone.signal });
  };
  try {
    await write(streamFrame(FRAME.attached, offsetBytes(reader.offset)));
    while (!gone.signal.aborted) {
      const since = exec.changed.count;
      const ended = exec.end !== null;
      const pieces = reader.offset < until ? exec.output.read(reader.offset) : [];
      for (const { offset, stream: number, data } of pieces) {
        await write(streamFrame(number === 2 ? FRAME.stderr : FRAME.stdout, offsetBytes(offset), data));
        reader.offset = offset + data.length;
      }
      exec.acknowledge(send);
      if (pieces.length > 0) continue;
      if (ended || !follow) break;
      await exec.changed.wait({ since, signal: gone.signal });
    }
    if (exec.end !== null)
      await write(streamFrame(FRAME.exit, Buffer.from(JSON.stringify(reportOf(instance_id, exec)))));
    else if (!follow) await write(streamFrame(FRAME.end));
    stream.end();
  } catch {
    stream.destroy();
  } finally {
    leave();
    endWait(!left);
    input?.end(!left);
  }
}

function takeInput(
  stream: Duplex,
  { exec, send, input }: Reading,
  signal: AbortSignal,
  onFrame: (type: number) => void,
): void {
  const frames = new StreamFrames();
  const take = async ({ type, payload }: StreamFrame): Promise<void> => {
    onFrame(type);
    if (exec.end !== null || !input) return;
    if (type === FRAME.input) await exec.write(send, payload, false, signal);
    else if (type === FRAME.eof) await exec.write(send, Buffer.alloc(0), true, signal);
    else if (type === FRAME.resize && payload.length === 4) send(TO_GUEST.resize, payload);
    else if (type === FRAME.signal && payload.length === 1) send(TO_GUEST.signal, payload);
  };
  stream.on('data', (chunk: Buffer) => {
    stream.pause();
    void (async () => {
      for (const frame of frames.push(chunk)) await take(frame);
    })().then(
      () => stream.resume(),
      () => stream.destroy(),
    );
  });
}
