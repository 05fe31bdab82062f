/** Answers the calls for files that a scripted agent receives, in place of a host and its guest. */
import type { Duplex } from 'node:stream';
import { FROM_FILES, StreamFrames, streamFrame, TO_FILES } from '../../src/protocol/file-stream.ts';
import type { HostCall } from '../../src/protocol/host-calls.ts';
import type { ScriptedAgent } from './scripted-agent.ts';

export const FIELDS = Buffer.from(
  'file\0' + '11\0' + '0640\0root\0' + '1700000000\0' + '500000000\0' + 'ab-c-1\0app.conf',
);

export interface FileHost {
  readonly call: Extract<HostCall, { kind: 'file' }>;
  readonly line: Duplex;
  readonly say: (type: keyof typeof FROM_FILES, payload?: Uint8Array | string) => void;
  /** The payload of the next frame of this type. */
  readonly hear: (type: keyof typeof TO_FILES) => Promise<Buffer>;
}

export async function nextFileCall(agent: ScriptedAgent): Promise<FileHost> {
  const { id, call } = await agent.nextCall('file');
  const line = await agent.client.openConsole(id);
  line.on('error', () => undefined);
  const frames = (async function* () {
    const reader = new StreamFrames();
    for await (const chunk of line) yield* reader.push(chunk as Buffer);
  })();
  return {
    call: call as FileHost['call'],
    line,
    say: (type, payload = '') =>
      void line.write(streamFrame(FROM_FILES[type], Buffer.from(payload as string))),
    hear: async (type) => {
      const { value } = await frames.next();
      if (value?.type !== TO_FILES[type]) throw new Error(`heard ${value?.type ?? 'the end'}, not ${type}`);
      return value.payload;
    },
  };
}

/** Does what a change asks for. */
export async function doneByHost<T>(agent: ScriptedAgent, asked: Promise<T>): Promise<T> {
  const host = await nextFileCall(agent);
  if (host.call.action.verb === 'write') {
    host.say('opened');
    await host.hear('commit');
  }
  host.say('done', Buffer.concat([Buffer.from('1\0'), FIELDS]));
  return asked;
}
