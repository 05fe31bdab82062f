/**
 * Serves the HTTP API of envd, the agent that runs in a sandbox at E2B: the Connect services `process.Process` and
 * `filesystem.Filesystem`, `/files` and `/health`. Nothing of it runs in the guest: each call is passed to
 * processes.ts or files.ts, which use Berth's API.
 *
 * Berth answers NOT_FOUND or CONFLICT for a missing file and for a deleted instance alike. E2B distinguishes them, so
 * this file looks the instance up, and answers `unavailable` if it is gone.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Berth, BerthError } from '../../../client/src/berth.ts';
import { Failure } from './failures.ts';
import { downloadFile, FILE_METHODS, isForm, MAX_FORM_BYTES, uploadFiles } from './files.ts';
import {
  type Caller,
  closeInput,
  connectProcess,
  KEEPALIVE,
  listProcesses,
  resizeTerminal,
  sendInput,
  sendSignal,
  startProcess,
} from './processes.ts';
import { type BodyBudget, parsed, readBody, sendJson, sendStream, unwrap } from './request-body.ts';
import { DEFAULT_USER, userOf } from './sandbox.ts';

export const ENVD_PATH = /^\/(?:process\.Process\/\w+|filesystem\.Filesystem\/\w+|files|health)$/;
const MAX_CALL_BYTES = 16 * 1024 * 1024;
const DEFAULT_KEEPALIVE_S = 90;

interface Place {
  readonly berth: Berth;
  readonly id: string;
  /** What its bodies are counted for. */
  readonly caller: string;
  readonly bodies: BodyBudget;
}

const PROCESS_STREAMS = { Start: startProcess, Connect: connectProcess } as const;
const PROCESS_CALLS = {
  List: listProcesses,
  SendSignal: sendSignal,
  SendInput: sendInput,
  CloseStdin: closeInput,
  Update: resizeTerminal,
} as const;

const named = <T extends object>(table: T, name: string) =>
  Object.hasOwn(table, name) ? table[name as keyof T] : undefined;

export async function answerEnvd(
  place: Place,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
): Promise<void> {
  const [, service = '', method = ''] = url.pathname.split('/');
  try {
    if (service === 'health') await health(place, response);
    else if (service === 'files') await files(place, request, response, url);
    else await call(place, service, method, request, response);
  } catch (error) {
    throw await explained(place, error);
  }
}

/** Berth says the same of a file and of an instance that is not there, or is being deleted. E2B distinguishes them. */
async function explained({ berth, id }: Place, error: unknown): Promise<unknown> {
  if (!(error instanceof BerthError) || !['NOT_FOUND', 'CONFLICT'].includes(error.code)) return error;
  const is_there = await berth.instances.get(id).then(
    ({ deleting }) => !deleting,
    () => false,
  );
  return is_there ? error : new Failure('unavailable', 'The sandbox is gone.', { cause: error });
}

async function* explaining(place: Place, messages: AsyncIterable<unknown>) {
  try {
    yield* messages;
  } catch (error) {
    throw await explained(place, error);
  }
}

async function health({ berth, id }: Place, response: ServerResponse): Promise<void> {
  const { deleting, vm } = await berth.instances.get(id);
  if (deleting || vm.state !== 'running') throw new Failure('unavailable', 'The sandbox does not run.');
  response.writeHead(204).end();
}

async function files(
  place: Place,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
): Promise<void> {
  const user = url.searchParams.get('username') ?? DEFAULT_USER;
  const file = { ...place, user, path: url.searchParams.get('path') ?? '' };
  if (request.method === 'GET') return downloadFile(file, response);
  if (request.method !== 'POST')
    throw new Failure('unimplemented', 'Files are read by GET and written by POST.');
  if (isForm(request)) place.bodies.take(place.caller, request, response, MAX_FORM_BYTES);
  sendJson(response, 200, await uploadFiles(file, request));
}

async function call(
  place: Place,
  service: string,
  method: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const vm = place.berth.vm(place.id);
  const user = userOf(request.headers.authorization);
  place.bodies.take(place.caller, request, response, MAX_CALL_BYTES);
  const body = await readBody(request, MAX_CALL_BYTES);
  const stream = service === 'process.Process' ? named(PROCESS_STREAMS, method) : undefined;
  if (stream) {
    const timeout_ms = numberIn(request, 'connect-timeout-ms');
    const idle_ms = (numberIn(request, 'keepalive-ping-interval') ?? DEFAULT_KEEPALIVE_S) * 1_000;
    const gone = new AbortController();
    response.once('close', () => gone.abort());
    const caller: Caller = { user, timeout_ms, gone: gone.signal };
    const messages = explaining(place, stream(vm, unwrap(body) as never, caller));
    return sendStream(response, messages, { idle: KEEPALIVE, idle_ms, gone: gone.signal });
  }
  const file_method = service === 'filesystem.Filesystem' ? named(FILE_METHODS, method) : undefined;
  if (file_method) return sendJson(response, 200, await file_method(vm, user, parsed(body) as object));
  const process_call = service === 'process.Process' ? named(PROCESS_CALLS, method) : undefined;
  if (process_call === undefined)
    throw new Failure('unimplemented', `Berth's adapter for E2B does not cover ${service}/${method}.`);
  sendJson(response, 200, await process_call(vm, parsed(body) as never));
}

function numberIn(request: IncomingMessage, name: string): number | null {
  const value = Number(request.headers[name] ?? Number.NaN);
  return Number.isFinite(value) && value > 0 ? value : null;
}
