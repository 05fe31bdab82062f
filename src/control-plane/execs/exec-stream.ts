/**
 * Serves the WebSocket to an exec, for a credential or a ticket: sends the exec's output from an offset on, and takes
 * its input. Binary messages begin with a byte for the channel (0 stdin, 1 stdout, 2 stderr); text messages are JSON. A
 * caller without the scope `vm:write` gets the output, and may send nothing.
 */
import type { Duplex } from 'node:stream';
import { type RawData, WebSocket } from 'ws';
import { FRAME, ReportedExec, readOffset, type StreamFrame, streamFrame } from '../../protocol/exec-types.ts';
import { conforms } from '../../protocol/schemas.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import { type ExecId, type InstanceId, isId } from '../../shared/ids.ts';
import { signalNumber } from '../../shared/signal-names.ts';
import { writeOrPause } from '../../shared/streams.ts';
import { CLOSE } from '../http/connections.ts';
import { EXEC_TICKET_PREFIX } from '../identity/tokens.ts';
import { findInstance } from '../instances/store.ts';
import { consumeTicket } from '../vms/console-routes.ts';
import { commandTarget } from '../vms/exec-routes.ts';
import { knownCredential, principalOfUpgrade } from '../vms/forward-stream.ts';
import type { AdmitContext, StreamHolder, StreamKind } from '../vms/guest-streams.ts';
import { OutputFrames, OutputLostError } from './output-routes.ts';
import { type ExecRow, findExec } from './store.ts';
import { execForHolder, execView, recordExec } from './use-exec.ts';

const PATH = /^\/v1\/instances\/([^/?]{1,64})\/execs\/([^/?]{1,64})\/stream(?:\?|$)/;
const BUFFER_BYTES = 256 * 1024;
/** Once the exec is lost, its host need not say so. */
const LOST_MS = 2_000;
/** The host ends the stream before then. */
const LEAVE_MS = 1_000;
const OFFSET = /^[0-9]{1,15}$/;

export const execStream: StreamKind = {
  name: 'stream to an exec',
  path: PATH,
  reauthorise_ms: 4_000,
  half_open: false,
  admit: async (context, request, instance_id, ip) => {
    const { db } = context;
    const id = PATH.exec(request.url ?? '')?.[2] ?? '';
    const { offset, ticket } = queryOf(request.url ?? '');
    const exec_id = id as ExecId;
    const holder =
      ticket === null
        ? await credentialHolder(context, request.headers, instance_id, ip)
        : await consumeTicket(db, ticket, { prefix: EXEC_TICKET_PREFIX, instance_id, exec_id });
    if (!isId('exec', id)) throw new AppError('NOT_FOUND');
    const { may_write } = await execForHolder(db, { ...holder, exec_id }, ip);
    return {
      holder: { ...holder, exec: { id: exec_id, may_write } },
      call: () => ({
        ...({ kind: 'exec_stream', instance_id, exec_id, offset, follow: true } as const),
        attached: may_write,
        input: may_write,
      }),
      join: (client, line) => joinExec(context, client, line, { instance_id, exec_id, may_write, offset }),
    };
  },
  place: async (db, { credential, org_id, instance_id, exec }, ip) => {
    const exec_id = exec?.id as ExecId;
    const { row, may_write } = await execForHolder(db, { credential, org_id, instance_id, exec_id }, ip);
    if (exec?.may_write === true && !may_write) throw new AppError('FORBIDDEN');
    const instance = await findInstance(db, org_id, instance_id);
    if (!instance) throw new AppError('NOT_FOUND');
    // Its output may be on an earlier host.
    return { ...commandTarget(instance), host_id: row.host_id };
  },
};

async function credentialHolder(
  context: AdmitContext,
  headers: Parameters<typeof principalOfUpgrade>[1],
  instance_id: InstanceId,
  ip: string,
): Promise<StreamHolder> {
  const principal = await principalOfUpgrade(context, headers, ip);
  if (!principal.scopes.has('vm:read'))
    throw new AppError('FORBIDDEN', { message: 'This needs the scope vm:read, and a role that has it.' });
  return { credential: knownCredential(principal), org_id: principal.org_id, instance_id };
}

/** @throws AppError INVALID_REQUEST */
function queryOf(url: string): { readonly offset: number; readonly ticket: string | null } {
  const query = new URL(url, 'http://exec').searchParams;
  const unknown = [...query.keys()].find((name) => name !== 'offset' && name !== 'ticket');
  if (unknown !== undefined) throw invalid(unknown.slice(0, 60), 'is unknown');
  const offset = query.get('offset') ?? '0';
  if (!OFFSET.test(offset)) throw invalid('offset', 'must be a whole number of bytes');
  return { offset: Number(offset), ticket: query.get('ticket') };
}

interface Joined {
  readonly instance_id: InstanceId;
  readonly exec_id: ExecId;
  readonly may_write: boolean;
  readonly offset: number;
}

/** The frames of the host become messages, and back. Neither side reads faster than the other takes. */
function joinExec(context: AdmitContext, client: WebSocket, line: Duplex, joined: Joined): void {
  const { db, hub } = context;
  const { instance_id, exec_id, may_write } = joined;
  const frames = new OutputFrames(joined.offset);
  let ending = false;
  const end = async (report: ReportedExec | null): Promise<void> => {
    if (ending) return;
    ending = true;
    const before = await findExec(db, instance_id, exec_id);
    if (report && before) await recordExec(db, before.host_id, report);
    const row = await findExec(db, instance_id, exec_id);
    if (!row || row.ended_at === null) return client.close(CLOSE.going_away, 'attach again');
    client.send(JSON.stringify({ type: 'exit', exec: execView(row as ExecRow) }));
    client.close(CLOSE.over, 'the exec has ended');
  };
  const ended = (report: ReportedExec | null) =>
    void end(report).catch(() => client.close(CLOSE.going_away, 'attach again'));
  const lost = async (): Promise<void> => {
    const row = await findExec(db, instance_id, exec_id);
    if (row?.state === 'lost') setTimeout(() => ended(null), LOST_MS).unref();
  };
  const unsubscribe = hub.subscribe('exec', exec_id, () => void lost().catch(() => undefined));
  void lost().catch(() => undefined);
  const pass = ({ type, payload }: StreamFrame): void => {
    if (type === FRAME.attached)
      client.send(JSON.stringify({ type: 'attached', offset: readOffset(payload).offset }));
    if (type === FRAME.exit) ended(reportIn(payload, joined));
    if (type !== FRAME.stdout && type !== FRAME.stderr) return;
    client.send(Buffer.concat([Buffer.of(type), readOffset(payload).rest]), { binary: true }, () => {
      if (line.isPaused() && client.bufferedAmount < BUFFER_BYTES) line.resume();
    });
  };
  line.on('data', (chunk: Buffer) => {
    if (client.readyState !== WebSocket.OPEN) return;
    try {
      for (const frame of frames.push(chunk)) pass(frame);
    } catch (error) {
      if (error instanceof OutputLostError) endWithGap(client, error);
      line.destroy();
    }
    if (client.bufferedAmount >= BUFFER_BYTES) line.pause();
  });
  line.on('error', () => line.destroy());
  line.on('close', () => {
    if (!ending) client.close(CLOSE.going_away, 'the host was disconnected; attach again');
  });
  client.on('message', (data: RawData, is_binary: boolean) => {
    if (client.readyState !== WebSocket.OPEN || line.destroyed) return;
    const frame = may_write ? frameIn(data as Buffer, is_binary) : 'this credential may only read';
    if (typeof frame === 'string') return client.close(CLOSE.revoked, frame);
    writeOrPause(client, line, frame);
  });
  client.on('error', () => client.terminate());
  client.on('close', (code) => {
    unsubscribe();
    // One that only vanishes may come back.
    if (code !== CLOSE.over) return line.destroy();
    line.end(streamFrame(FRAME.leave));
    setTimeout(() => line.destroy(), LEAVE_MS).unref();
  });
}

/** What follows is no longer the output as a whole. */
function endWithGap(client: WebSocket, { offset, lost_bytes, message }: OutputLostError): void {
  client.send(JSON.stringify({ type: 'gap', offset, lost_bytes }));
  client.close(CLOSE.output_lost, message.slice(0, 120));
}

/** A host can send anything. */
function reportIn(
  payload: Buffer,
  { instance_id, exec_id }: Pick<Joined, 'instance_id' | 'exec_id'>,
): ReportedExec | null {
  const report: unknown = JSON.parse(payload.toString('utf8'));
  if (!conforms(ReportedExec, report)) return null;
  const { instance_id: of, exec_id: id } = report as ReportedExec;
  return of === instance_id && id === exec_id ? (report as ReportedExec) : null;
}

/** A message of the client as a frame, or what is wrong with it. */
function frameIn(data: Buffer, is_binary: boolean): Buffer | string {
  if (is_binary) return data[0] === 0 ? streamFrame(FRAME.input, data.subarray(1)) : 'stdin is channel 0';
  let message: { type?: unknown; columns?: unknown; rows?: unknown; signal?: unknown } | null;
  try {
    message = JSON.parse(data.toString('utf8')) as typeof message;
  } catch {
    return 'a text message must be JSON';
  }
  switch (message?.type) {
    case 'eof':
      return streamFrame(FRAME.eof);
    case 'resize': {
      const sizes = [message.columns, message.rows].map(Number);
      if (!sizes.every((each) => Number.isInteger(each) && each >= 1 && each <= 65_535))
        return 'columns and rows must be 1 to 65535';
      const size = Buffer.alloc(4);
      for (const [index, each] of sizes.entries()) size.writeUInt16BE(each, 2 * index);
      return streamFrame(FRAME.resize, size);
    }
    case 'signal': {
      const number = typeof message.signal === 'string' ? signalNumber(message.signal) : undefined;
      return number === undefined ? 'the signal is unknown' : streamFrame(FRAME.signal, Buffer.of(number));
    }
    default:
      return 'the type of the message is unknown';
  }
}
