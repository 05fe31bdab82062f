/**
 * Serves the output of an exec, as the bytes that its host has kept or, with `follow`, as server-sent events until the
 * exec ends. Also takes bytes for its input. `OutputFrames` reads the host's stream of output, for exec-stream.ts, too.
 */
import { type Duplex, Readable } from 'node:stream';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { type TSchema, Type } from 'typebox';
import {
  FRAME,
  INPUT_BYTES,
  MalformedStreamError,
  OUTPUT_KEPT_BYTES,
  OUTPUTS_KEPT_BYTES,
  ReportedExec,
  readOffset,
  type StreamFrame,
  StreamFrames,
} from '../../protocol/exec-types.ts';
import { conforms } from '../../protocol/schemas.ts';
import { AppError, errnoOf, invalid } from '../../shared/errors.ts';
import type { AppContext } from '../context.ts';
import { principalOf, reauthorise } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import type { App } from '../http/mutate.ts';
import { closed, NoContent, oneOf } from '../http/schemas.ts';
import type { OpenStreams } from '../organisations/open-streams.ts';
import { ExecParams, execRef } from './routes.ts';
import type { ExecRow } from './store.ts';
import { controlExec, execOf, execView, noInput, openOutput, recordExec, runningExec } from './use-exec.ts';

/** 409 CONFLICT, whose detail programs read. */
export class OutputLostError extends AppError {
  readonly lost_bytes: number;
  /** Of the first byte that is still kept. */
  readonly offset: number;

  constructor(reached: number, offset: number) {
    const lost_bytes = offset - reached;
    super('CONFLICT', {
      message: `${lost_bytes} bytes of the output, from offset ${reached} on, are no longer kept. Read on from offset ${offset}.`,
      details: [{ field: 'offset', issue: `lost ${lost_bytes}, first kept ${offset}` }],
    });
    this.lost_bytes = lost_bytes;
    this.offset = offset;
  }
}

/** The frames of a host's stream of output, from an offset on. A gap is an error, so that no reader takes the rest for the whole. */
export class OutputFrames {
  readonly #frames = new StreamFrames();
  #reached: number;

  constructor(offset: number) {
    this.#reached = offset;
  }

  /** The frames that `chunk` completes, up to the gap or fault. @throws OutputLostError, MalformedStreamError */
  *push(chunk: Buffer): Generator<StreamFrame, void, undefined> {
    for (const frame of this.#frames.push(chunk)) {
      const { type, payload } = frame;
      if (type === FRAME.attached) this.#require(readOffset(payload).offset);
      if (type === FRAME.stdout || type === FRAME.stderr) {
        const { offset, rest } = readOffset(payload);
        this.#require(offset);
        // A host can send anything.
        if (offset < this.#reached) throw new MalformedStreamError('output is repeated');
        this.#reached += rest.length;
      }
      yield frame;
    }
  }

  #require(offset: number): void {
    if (offset > this.#reached) throw new OutputLostError(this.#reached, offset);
  }
}

const HEARTBEAT_MS = 15_000;
const OFFSET_PATTERN = '^[0-9]{1,15}$';
const OFFSET_HEADER = 'berth-output-offset';
const MIB = 1024 * 1024;
const BUFFER_BYTES = 256 * 1024;
/** Once the exec is lost, its host need not say so. */
const LOST_MS = 2_000;

export function registerExecOutput(app: App, context: AppContext, open_streams: OpenStreams): void {
  const closing = new AbortController();
  app.addHook('preClose', async () => closing.abort());
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/execs/:exec_id/output',
    config: { access: 'vm:read', errors: ['CONFLICT', 'QUOTA_EXCEEDED'] },
    schema: {
      operationId: 'getExecOutput',
      summary: 'Get the output of an exec; with `follow`, as it comes',
      description: `\`offset\` counts bytes of stdout and stderr together, in the order of their arrival. The last ${OUTPUT_KEPT_BYTES / MIB} MiB of each exec are kept, ${OUTPUTS_KEPT_BYTES / MIB} MiB of an instance: the output of the exec that ended first goes first. Where the byte at \`offset\` is no longer kept, the answer is 409 CONFLICT; its message, and its detail \`lost N, first kept M\` of the field \`offset\`, say how many bytes are lost and where to read on. So what is read has no gap. The output stays after the boot has ended, on the host where the exec ran. The header \`Berth-Output-Offset\` is the offset of the first byte of the answer. Past the end, the answer is empty. An answer that ends early was cut off: its connection breaks.\n\nWith \`follow=true\` the answer is a stream of server-sent events: \`stdout\` and \`stderr\`, whose data is base64 and whose id is the next offset, and at last \`exit\` with the exec. It ends with \`gap\` (\`lost_bytes\`, and the \`offset\` of the first kept byte) if the reader fell so far behind that output was removed, and with \`end\` (\`code\`, \`message\`) when the credential, the instance or the exec is gone. Without any of these it was cut off: ask again with the last id as the offset. The exec waits for a reader that may write, and for 60 s after the last one was lost.`,
      tags: ['Execs'],
      params: ExecParams,
      querystring: closed({
        offset: Type.Optional(
          Type.String({
            pattern: OFFSET_PATTERN,
            maxLength: 15,
            description: 'The first byte that is wanted',
            contentSchema: { type: 'integer', minimum: 0, maximum: 999_999_999_999_999, default: 0 },
          }),
        ),
        stream: Type.Optional(oneOf(['stdout', 'stderr'], { description: 'Only this stream' })),
        follow: Type.Optional(
          oneOf(['true', 'false'], { default: 'false', description: 'Stay until the exec ends' }),
        ),
      }),
      response: { 200: outputSchema() },
    },
    handler: async (request, reply) => {
      const { db } = context;
      const { org_id, scopes } = principalOf(request);
      const row = await execOf(db, org_id, execRef(request.params));
      const { offset = '0', stream, follow } = request.query;
      const may_write = scopes.has('vm:write');
      const wanted = { row, offset: Number(offset), stream: streamOf(stream), may_write };
      // Also without following: a slow reader may take as long.
      const release = await open_streams.open(org_id);
      const gone = disconnectSignal(reply);
      gone.addEventListener('abort', release, { once: true });
      if (gone.aborted) release();
      if (follow !== 'true') return answerKept(context, request, reply, wanted, gone);
      return answerFollowing(context, request, reply, wanted, AbortSignal.any([gone, closing.signal]));
    },
  });
  registerInput(app, context);
}

interface Wanted {
  readonly row: ExecRow;
  readonly offset: number;
  /** The type of its frames; null: both. */
  readonly stream: number | null;
  /** The exec waits for such a reader. */
  readonly may_write: boolean;
}

function streamOf(name: 'stdout' | 'stderr' | undefined): number | null {
  if (name === undefined) return null;
  return name === 'stdout' ? FRAME.stdout : FRAME.stderr;
}

function outputSchema(): TSchema {
  const text = { type: 'string', maxLength: Number.MAX_SAFE_INTEGER };
  return {
    description: 'The bytes, or the stream of events.',
    content: { 'application/octet-stream': { schema: text }, 'text/event-stream': { schema: text } },
  } as never;
}

/**
 * The frames of a stream, to its end or until it was cut off; the first says that the host has the output from `offset` on.
 * @throws OutputLostError, MalformedStreamError
 */
async function* framesOf(line: Duplex, offset: number): AsyncGenerator<StreamFrame, void, undefined> {
  const frames = new OutputFrames(offset);
  try {
    for await (const chunk of line) yield* frames.push(chunk as Buffer);
  } catch (error) {
    if (errnoOf(error) !== 'ERR_STREAM_PREMATURE_CLOSE') throw error;
  } finally {
    line.destroy();
  }
}

function isWanted({ type }: StreamFrame, stream: number | null): boolean {
  return stream === null ? type === FRAME.stdout || type === FRAME.stderr : type === stream;
}

function cutOff(): AppError {
  const message = 'The host disconnected before the end of the output. Nothing is lost: repeat the request.';
  return new AppError('UNAVAILABLE', { message, retry_after_seconds: 2 });
}

async function answerKept(
  context: AppContext,
  request: FastifyRequest,
  reply: FastifyReply,
  { row, offset, stream }: Wanted,
  gone: AbortSignal,
) {
  // Nothing to ask the host for.
  if (row.ended_at !== null && row.output_bytes === 0) {
    reply.header(OFFSET_HEADER, String(offset)).type('application/octet-stream');
    return reply.send(Buffer.alloc(0) as never);
  }
  const { heartbeat_ms = HEARTBEAT_MS } = context;
  const line = await openOutput(context, row, { offset, follow: false, attached: false, input: false }, gone);
  const beat = () =>
    mayStillRead(context, request, row).catch((error: unknown) => {
      if (error instanceof AppError) line.destroy();
    });
  const beats = setInterval(() => void beat(), heartbeat_ms);
  line.once('close', () => clearInterval(beats));
  const frames = framesOf(line, offset);
  /** Null: the end. @throws when the answer would look whole, and is not */
  const next = async (): Promise<{ readonly at: number; readonly bytes: Buffer } | null> => {
    for (;;) {
      const { value, done } = await frames.next();
      if (done === true) throw cutOff();
      if (value.type === FRAME.end || value.type === FRAME.exit) return null;
      if (!isWanted(value, stream)) continue;
      const { offset: at, rest: bytes } = readOffset(value.payload);
      return { at, bytes };
    }
  };
  const first = await next();
  async function* all(): AsyncGenerator<Buffer> {
    try {
      for (let each = first; each !== null; each = await next()) yield each.bytes;
    } finally {
      line.destroy();
    }
  }
  reply.header(OFFSET_HEADER, String(first?.at ?? offset)).type('application/octet-stream');
  return reply.send(Readable.from(all()) as never);
}

/** The caller, and what it reads. @throws AppError */
async function mayStillRead({ db }: AppContext, request: FastifyRequest, row: ExecRow): Promise<ExecRow> {
  const { org_id } = await reauthorise(db, request);
  return execOf(db, org_id, row);
}

async function answerFollowing(
  context: AppContext,
  request: FastifyRequest,
  reply: FastifyReply,
  { row, offset, stream, may_write }: Wanted,
  signal: AbortSignal,
) {
  const { db, hub, heartbeat_ms = HEARTBEAT_MS } = context;
  const wanted = { offset, follow: true, attached: may_write, input: false };
  const line = await openOutput(context, row, wanted, signal);
  const frames = framesOf(line, offset);
  if ((await frames.next()).done === true) throw cutOff();
  let room = () => {};
  const body = new Readable({ highWaterMark: BUFFER_BYTES, read: () => room() });
  /** False: the reader has enough for now. */
  const say = (text: string) => body.destroyed || body.readableEnded || body.push(text);
  let over = false;
  const finish = () => {
    if (over) return;
    over = true;
    line.destroy();
    if (!body.destroyed) body.push(null);
  };
  const end = async (report: ReportedExec | null): Promise<void> => {
    if (report) await recordExec(db, row.host_id, report);
    const now = await execOf(db, row.org_id, row);
    if (now.ended_at !== null && !over) say(`event: exit\ndata: ${JSON.stringify(execView(now))}\n\n`);
    finish();
  };
  const pass = async (): Promise<void> => {
    for await (const frame of frames) {
      if (frame.type === FRAME.exit) return end(reportIn(frame.payload, row));
      if (!isWanted(frame, stream) || say(eventOf(frame))) continue;
      await new Promise<void>((resolve) => {
        room = resolve;
      });
    }
    // The exec may be lost with its host, which is known a moment later.
    setTimeout(finish, LOST_MS).unref();
  };
  void pass().catch((error: unknown) => {
    if (error instanceof OutputLostError && !over) say(gapEvent(error));
    finish();
  });
  const lost = async (): Promise<void> => {
    const now = await execOf(db, row.org_id, row);
    if (now.state === 'lost') setTimeout(() => void end(null).catch(finish), LOST_MS).unref();
  };
  const unsubscribe = hub.subscribe('exec', row.id, () => void lost().catch(finish));
  void lost().catch(finish);
  const beat = async (): Promise<void> => {
    say(': heartbeat\n\n');
    await mayStillRead(context, request, row).catch((error: unknown) => {
      if (!(error instanceof AppError) || over) return;
      const { code, message } = error;
      say(`event: end\ndata: ${JSON.stringify({ code, message })}\n\n`);
      finish();
    });
  };
  const beats = setInterval(() => void beat(), heartbeat_ms);
  body.on('error', () => undefined);
  body.on('close', () => {
    clearInterval(beats);
    unsubscribe();
    line.destroy();
    room();
  });
  signal.addEventListener('abort', finish, { once: true });
  reply
    .header('content-type', 'text/event-stream')
    .header('cache-control', 'no-store')
    .header('x-accel-buffering', 'no')
    .header('connection', 'close');
  return reply.send(body as never);
}

function gapEvent({ offset, lost_bytes }: OutputLostError): string {
  return `event: gap\ndata: ${JSON.stringify({ offset, lost_bytes })}\n\n`;
}

function eventOf({ type, payload }: StreamFrame): string {
  const { offset, rest } = readOffset(payload);
  const name = type === FRAME.stdout ? 'stdout' : 'stderr';
  return `id: ${offset + rest.length}\nevent: ${name}\ndata: ${rest.toString('base64')}\n\n`;
}

/** A host can send anything. */
function reportIn(payload: Buffer, { id, instance_id }: ExecRow): ReportedExec | null {
  const report: unknown = JSON.parse(payload.toString('utf8'));
  if (!conforms(ReportedExec, report)) return null;
  const known = report as ReportedExec;
  return known.exec_id === id && known.instance_id === instance_id ? known : null;
}

function registerInput(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/execs/:exec_id/stdin',
    config: { access: 'vm:write', raw_body: true, errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    bodyLimit: INPUT_BYTES,
    schema: {
      operationId: 'writeExecInput',
      summary: 'Send bytes to the input of an exec, and with `eof=true` its end',
      description: `At most ${INPUT_BYTES / MIB} MiB in a request, of any type. The answer comes once the guest has room for more. The bytes of concurrent requests do not mix.`,
      tags: ['Execs'],
      params: ExecParams,
      querystring: closed({
        eof: Type.Optional(
          oneOf(['true', 'false'], { default: 'false', description: 'Then close the input' }),
        ),
      }),
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const row = await runningExec(context.db, principalOf(request), execRef(request.params));
      const bytes = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
      const eof = request.query.eof === 'true';
      if (!row.stdin) throw noInput();
      if (bytes.length === 0 && !eof) throw invalid('body', 'is empty; send bytes, or eof=true');
      const action = { kind: 'input', data: bytes.toString('base64'), eof } as const;
      await controlExec(context, row, action, disconnectSignal(reply));
      return reply.status(204).send(null);
    },
  });
}
