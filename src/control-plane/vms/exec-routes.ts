/** `POST …/vm/exec`: a command whose answer is waited for. */
import { Type } from 'typebox';
import type { AppContext } from '../context.ts';
import { disconnectSignal } from '../http/connections.ts';
import { NO_NUL_PATTERN } from '../http/errors.ts';
import { type App, mutate } from '../http/mutate.ts';
import { InstanceParams, named, nullable } from '../http/schemas.ts';
import { instanceId } from '../instances/routes.ts';
import { checkCommand, placeOfCommand, runInGuest, WORD_BYTES } from './exec-command.ts';

const DEFAULT_TIMEOUT_S = 60;
const MAX_TIMEOUT_S = 600;
/** A mebibyte of stdin, escaped. */
const BODY_LIMIT_BYTES = 4 * 1024 * 1024;
/** Linux accepts none that contains NUL. Its bytes are counted later. */
const ARGUMENT = { maxLength: WORD_BYTES, pattern: NO_NUL_PATTERN };
const MAX_OUTPUT = 1024 * 1024;
const AUDITED_CHARACTERS = 200;

const output = (example: string) =>
  Type.String({ maxLength: MAX_OUTPUT, description: 'As UTF-8; the first MiB', examples: [example] });

const ExecRequest = named('ExecRequest', {
  command: Type.Array(Type.String(ARGUMENT), {
    minItems: 1,
    maxItems: 256,
    description: `The program, by path or by name, and its arguments, each of at most ${WORD_BYTES} bytes in UTF-8; no shell interprets them`,
    examples: [['uname', '-r']],
  }),
  stdin: Type.Optional(
    Type.String({ maxLength: 1024 * 1024, description: 'At most 1 MiB in UTF-8', examples: [''] }),
  ),
  timeout_seconds: Type.Optional(
    Type.Integer({ minimum: 1, maximum: MAX_TIMEOUT_S, default: DEFAULT_TIMEOUT_S, examples: [60] }),
  ),
});
const ExecResult = named('ExecResult', {
  exit_code: nullable(
    Type.Integer({
      description: 'null: killed at its timeout; 128 + n: ended by signal n; 127: no such program',
      examples: [0],
    }),
  ),
  stdout: output('6.1.0-31-cloud-amd64\n'),
  stderr: output(''),
  truncated: Type.Boolean({ description: 'stdout or stderr was longer', examples: [false] }),
});

export function registerVmExec(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/exec',
    config: { access: 'vm:write', errors: ['CONFLICT', 'VM_NOT_RUNNING'] },
    bodyLimit: BODY_LIMIT_BYTES,
    schema: {
      operationId: 'execInVm',
      summary: 'Run a command in the guest as root, and wait until it ends',
      description:
        'The guest agent runs the command in `/`, in a new session. After `timeout_seconds` it kills the command and its session; the answer then has `exit_code` null and the output so far. The audit log keeps the program, but not its arguments. There is no Idempotency-Key, because no result is kept: a repeated request runs the command again.',
      tags: ['VM'],
      params: InstanceParams,
      body: ExecRequest,
      response: { 200: ExecResult },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { command, stdin = '', timeout_seconds = DEFAULT_TIMEOUT_S } = request.body;
      checkCommand({ command, stdin });
      const mutation = { action: 'vm.exec' };
      const { body: place } = await mutate(context, request, reply, mutation, async (tx, principal) => {
        const found = await placeOfCommand(tx, principal, id);
        // Arguments often hold secrets. Half a character, given or cut, is not valid JSON.
        const program = (command[0] ?? '').slice(0, AUDITED_CHARACTERS).toWellFormed();
        return { status: 200, body: found, target: id, data: { vm_id: found.vm_id, program } };
      });
      const wanted = { command, stdin, timeout_ms: timeout_seconds * 1000 };
      const { db, host_calls, heartbeat_ms: mark_used_every_ms } = context;
      return runInGuest({ db, host_calls, mark_used_every_ms }, place, wanted, disconnectSignal(reply));
    },
  });
}
