/**
 * Serves the execs of an instance: starts, lists, signals, resizes and kills them, and makes tickets for their streams.
 * An exec is a command in the guest that outlives its caller. Output and input: output-routes.ts and exec-stream.ts.
 */
import { Type } from 'typebox';
import { ENDED_KEPT, LOST_WITH, RUNNING_MAX } from '../../protocol/exec-types.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { type ExecId, isId } from '../../shared/ids.ts';
import { SIGNAL_NAMES, signalNumber } from '../../shared/signal-names.ts';
import type { AppContext } from '../context.ts';
import { EXEC_STATES } from '../db/column-types.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import { NO_NUL_PATTERN } from '../http/errors.ts';
import { type App, mutate } from '../http/mutate.ts';
import { type CursorSealer, pageOfList } from '../http/pagination.ts';
import {
  closed,
  EmptyBody,
  InstanceParams,
  idOf,
  NoContent,
  named,
  nullable,
  oneOf,
  pageOf,
  pageQuery,
  pathIds,
  Time,
} from '../http/schemas.ts';
import { EXEC_TICKET_PREFIX } from '../identity/tokens.ts';
import { instanceId } from '../instances/routes.ts';
import { findInstance } from '../instances/store.ts';
import { issueTicket } from '../vms/console-routes.ts';
import { TICKET_SECONDS } from '../vms/console-ticket-store.ts';
import { CWD_BYTES, checkWords, WORD_BYTES } from '../vms/exec-routes.ts';
import { type ExecRow, findExec, listExecs } from './store.ts';
import {
  beginExec,
  controlExec,
  type ExecRef,
  execOf,
  execView,
  runningExec,
  startExec,
} from './use-exec.ts';

/** All words of a command, with room for escapes. */
const BODY_LIMIT_BYTES = 8 * 1024 * 1024;
/** Linux accepts none that contains NUL. Its bytes are counted later. */
const ARGUMENT = { maxLength: WORD_BYTES, pattern: NO_NUL_PATTERN };
const ENV_NAME = '^[A-Za-z_][A-Za-z0-9_]{0,127}$';
const MAX_TIMEOUT_S = 30 * 24 * 3600;
const AUDITED_CHARACTERS = 200;
const TAGS = ['Execs'];

const Command = Type.Array(Type.String(ARGUMENT), {
  minItems: 1,
  maxItems: 1024,
  description: `The program, by path or by name, and its arguments, each of at most ${WORD_BYTES} bytes in UTF-8; no shell interprets them`,
  examples: [['make', 'test']],
});
const TerminalSize = {
  columns: Type.Integer({ minimum: 1, maximum: 65_535, examples: [80] }),
  rows: Type.Integer({ minimum: 1, maximum: 65_535, examples: [24] }),
};
export const Exec = named('Exec', {
  id: idOf('exec'),
  instance_id: idOf('inst'),
  command: Command,
  state: oneOf(EXEC_STATES, {
    title: 'ExecState',
    description:
      '`lost`: its boot ended (restart, stop, crash) before it did, or before its exit had left the guest; `lost_with` says whether something else ended',
    examples: ['exited'],
  }),
  exit_code: nullable(
    Type.Integer({
      description: 'null: it runs, is lost, or was ended by a signal; 127: no such program',
      examples: [0],
    }),
  ),
  signal: nullable(Type.String({ description: 'The signal that ended it' }), { examples: [null] }),
  timed_out: Type.Boolean({ description: 'It was killed at its timeout', examples: [false] }),
  lost_with: nullable(
    oneOf(LOST_WITH, {
      description:
        'Of a lost exec: `boot`, or `supervisor`, the process in the guest that runs execs, such as by `kill -9 -1`; the boot goes on',
    }),
    { examples: [null] },
  ),
  started_at: Time,
  ended_at: nullable(Time),
  output_bytes: Type.Integer({
    description: 'Of stdout and stderr together; of a running exec about a second old',
    examples: [5123],
  }),
});
const CreateExecRequest = named('CreateExecRequest', {
  command: Command,
  env: Type.Optional(
    Type.Record(Type.String({ pattern: ENV_NAME }), Type.String(ARGUMENT), {
      additionalProperties: false,
      maxProperties: 256,
      description: 'Added to PATH, HOME, USER, LOGNAME and SHELL, and to TERM with a terminal',
      examples: [{ CI: 'true' }],
    }),
  ),
  cwd: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: CWD_BYTES,
      pattern: NO_NUL_PATTERN,
      default: '/',
      examples: ['/srv'],
    }),
  ),
  user: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 64,
      pattern: NO_NUL_PATTERN,
      default: 'root',
      description: 'A user of the guest, by name or number',
      examples: ['root'],
    }),
  ),
  tty: Type.Optional(closed(TerminalSize)),
  stdin: Type.Optional(
    Type.Boolean({
      default: false,
      description: 'Its input stays open; a terminal always has input',
      examples: [false],
    }),
  ),
  timeout_seconds: Type.Optional(
    nullable(Type.Integer({ minimum: 1, maximum: MAX_TIMEOUT_S }), {
      default: null,
      description: 'Then its process group gets SIGKILL; null: no timeout',
      examples: [null],
    }),
  ),
});
const ExecTicket = named('ExecTicket', {
  ticket: Type.String({
    description: 'Shown only once; valid for one connection',
    examples: ['berth_xtix_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti'],
  }),
  expires_at: Time,
});

export const ExecParams = pathIds({ id: 'the instance', exec_id: 'the exec' });

/** The exec of a path. @throws AppError NOT_FOUND also where an id is malformed */
export function execRef(params: { readonly id: string; readonly exec_id: string }): ExecRef {
  const { exec_id: id } = params;
  if (!isId('exec', id)) throw new AppError('NOT_FOUND');
  return { instance_id: instanceId(params), id: id as ExecId };
}

export function registerExecs(app: App, context: AppContext, cursors: CursorSealer): void {
  registerCreate(app, context);
  registerReads(app, context, cursors);
  registerSignal(app, context);
  registerResize(app, context);
  registerEnd(app, context);
  registerTicket(app, context);
}

function registerCreate(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/execs',
    config: {
      access: 'vm:write',
      idempotent: true,
      errors: ['CONFLICT', 'VM_NOT_RUNNING', 'QUOTA_EXCEEDED'],
    },
    bodyLimit: BODY_LIMIT_BYTES,
    schema: {
      operationId: 'createExec',
      summary: 'Run a command in the guest, which goes on without its caller',
      description: `The command runs in a new session. It outlives its readers and every process of Berth, and a suspend; it ends with its first process, or is \`lost\` with its boot. At most ${RUNNING_MAX} run at once in a VM. A running exec counts as use of the VM, unless its input is open and nobody is attached: then only what it prints and is sent does. Input that came over a stream ends 60 s after that stream was lost, unless another is attached or \`POST …/stdin\` was used; outages of Berth do not count. A 503 whose detail \`exec_id\` names the exec means that it may run all the same, now or later. The audit log keeps the program, but not its arguments.`,
      tags: TAGS,
      params: InstanceParams,
      body: CreateExecRequest,
      response: { 201: Exec },
    },
    handler: async (request, reply) => {
      const instance_id = instanceId(request.params);
      const { command, env = {}, cwd = '/', user = 'root', stdin = false } = request.body;
      const { tty = null, timeout_seconds = null } = request.body;
      const has_input = stdin || tty !== null;
      checkWords(command, env, cwd);
      const mutation = {
        action: 'exec.create',
        holds: async (_tx: unknown, kept: unknown) =>
          (await findExec(context.db, instance_id, (kept as { id: ExecId }).id)) !== undefined,
      };
      const { body: begun } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const body = await beginExec(tx, principal, instance_id, { command, tty, stdin: has_input });
        // Arguments often hold secrets. Half a character, given or cut, is not valid JSON.
        const program = (command[0] ?? '').slice(0, AUDITED_CHARACTERS).toWellFormed();
        return { status: 201, body, target: body.id, data: { instance_id, vm_id: body.vm_id, program } };
      });
      const wanted = { command, env, cwd, user, tty, stdin: has_input, timeout_seconds };
      const row = await startExec(context, begun, wanted, disconnectSignal(reply));
      return reply.status(201).send(execView(row));
    },
  });
}

function registerReads(app: App, { db }: AppContext, cursors: CursorSealer): void {
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/execs',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'listExecs',
      summary: `List an instance's execs: all that run, and the last ${ENDED_KEPT} that have ended`,
      tags: TAGS,
      params: InstanceParams,
      querystring: pageQuery(200, {}),
      response: { 200: pageOf(Exec) },
    },
    handler: async (request) => {
      const principal = principalOf(request);
      const id = instanceId(request.params);
      if (!(await findInstance(db, principal.org_id, id))) throw new AppError('NOT_FOUND');
      return pageOfList(cursors, principal, request, {
        route: 'execs',
        of: { instance_id: id },
        list: (before, count) => listExecs(db, id, before, count),
        show: execView,
      });
    },
  });
  app.route({
    method: 'GET',
    url: '/v1/instances/:id/execs/:exec_id',
    config: { access: 'vm:read' },
    schema: {
      operationId: 'getExec',
      summary: 'Get an exec',
      tags: TAGS,
      params: ExecParams,
      response: { 200: Exec },
    },
    handler: async (request) =>
      execView(await execOf(db, principalOf(request).org_id, execRef(request.params))),
  });
}

function registerSignal(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/execs/:exec_id/signal',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'signalExec',
      summary: 'Send a signal to the process group of an exec',
      tags: TAGS,
      params: ExecParams,
      body: named('SignalExecRequest', { signal: oneOf(SIGNAL_NAMES, { examples: ['SIGTERM'] }) }),
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const place = execRef(request.params);
      const { signal } = request.body;
      const mutation = { action: 'exec.signal' };
      const { body: row } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const found = await runningExec(tx, principal, place);
        return {
          status: 204,
          body: found,
          target: place.id,
          data: { instance_id: place.instance_id, signal },
        };
      });
      const action = { kind: 'signal', signal: signalNumber(signal) ?? 0 } as const;
      await controlExec(context, row as ExecRow, action, disconnectSignal(reply));
      return reply.status(204).send(null);
    },
  });
}

function registerResize(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/execs/:exec_id/resize',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'resizeExec',
      summary: 'Set the size of the terminal of an exec',
      tags: TAGS,
      params: ExecParams,
      body: named('ResizeExecRequest', TerminalSize),
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const row = await runningExec(context.db, principalOf(request), execRef(request.params));
      if (!row.tty) throw new AppError('CONFLICT', { message: 'The exec has no terminal.' });
      const action = { kind: 'resize', ...request.body } as const;
      await controlExec(context, row, action, disconnectSignal(reply));
      return reply.status(204).send(null);
    },
  });
}

const SIGKILL = 9;

function registerEnd(app: App, context: AppContext): void {
  app.route({
    method: 'DELETE',
    url: '/v1/instances/:id/execs/:exec_id',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    schema: {
      operationId: 'killExec',
      summary: 'End an exec: SIGKILL to its process group; its record stays',
      tags: TAGS,
      params: ExecParams,
      body: EmptyBody,
      response: { 204: NoContent },
    },
    handler: async (request, reply) => {
      const place = execRef(request.params);
      const mutation = { action: 'exec.kill' };
      const { body: row } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const found = await execOf(tx, principal.org_id, place);
        const data = { instance_id: place.instance_id };
        if (found.state !== 'running') return { status: 204, body: null, target: place.id, unchanged: true };
        return { status: 204, body: await runningExec(tx, principal, place), target: place.id, data };
      });
      if (row !== null) {
        const action = { kind: 'signal', signal: SIGKILL } as const;
        await controlExec(context, row, action, disconnectSignal(reply)).catch(unlessEnded);
      }
      return reply.status(204).send(null);
    },
  });
}

/** It has ended meanwhile: as wanted. */
function unlessEnded(error: unknown): void {
  if (!(error instanceof AppError && error.code === 'CONFLICT')) throw error;
}

function registerTicket(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/execs/:exec_id/ticket',
    config: { access: 'vm:write' },
    schema: {
      operationId: 'createExecTicket',
      summary: 'Create a ticket for a stream to an exec',
      description: `For browsers, whose WebSocket cannot send a credential. A ticket opens one WebSocket, \`GET /v1/instances/{id}/execs/{exec_id}/stream?offset=0&ticket=…\`, within ${TICKET_SECONDS} s. A binary message is one byte for the channel (0 stdin, 1 stdout, 2 stderr) and bytes; a text message is JSON. The server sends \`{"type":"attached","offset":0}\` first and \`{"type":"exit","exec":…}\` last, then closes with 1000; with 1001 if the stream was cut off: attach again, with the offset that you have reached; and with 4409 after \`{"type":"gap","offset":…,"lost_bytes":…}\` if output from the offset on is no longer kept, of which \`offset\` is the first kept byte. An empty message of channel 0 says that input will come over this stream. The client may send \`{"type":"eof"}\`, \`{"type":"resize","columns":80,"rows":24}\` and \`{"type":"signal","signal":"SIGINT"}\`. Other clients connect with a bearer credential and no ticket; one that may only read gets output and sends nothing. The exec waits for an attached reader that may write, and for 60 s after the last one was lost; one that closes with 1000 is not lost.`,
      tags: TAGS,
      params: ExecParams,
      body: EmptyBody,
      response: { 201: ExecTicket },
    },
    handler: async (request, reply) => {
      const { instance_id, id } = execRef(request.params);
      const mutation = { action: 'exec.attach' };
      const { body } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        await execOf(tx, principal.org_id, { instance_id, id });
        const place = { prefix: EXEC_TICKET_PREFIX, instance_id, exec_id: id } as const;
        const { ticket, expires_at } = await issueTicket(tx, principal, place);
        const shown = { ticket, expires_at: rfc3339(expires_at) };
        return { status: 201, body: shown, target: id, data: { instance_id } };
      });
      return reply.status(201).send(body);
    },
  });
}
