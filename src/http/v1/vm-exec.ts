import { Type } from 'typebox';
import { checkCommand, placeOfCommand, runInGuest } from '../../vms/exec-command.ts';
import type { App } from '../app.ts';
import type { AppContext } from '../context.ts';
import { hangUp } from '../hang-up.ts';
import { mutate } from '../mutate.ts';
import { COMMON, errors, InstanceParams, named, nullable } from '../schemas.ts';
import { NO_NUL_PATTERN } from '../validation-words.ts';
import { instanceId } from './instances.ts';

const DEFAULT_TIMEOUT_S = 60;
const MAX_TIMEOUT_S = 600;
/** A mebibyte of stdin, escaped. */
const BODY_LIMIT_BYTES = 4 * 1024 * 1024;
/** Linux takes no longer argument (MAX_ARG_STRLEN), and none with a NUL in it. */
const ARGUMENT = { maxLength: 131_071, pattern: NO_NUL_PATTERN };
const MAX_OUTPUT = 1024 * 1024;
const AUDITED_CHARACTERS = 200;

const ExecRequest = named('ExecRequest', {
  command: Type.Array(Type.String(ARGUMENT), {
    minItems: 1,
    maxItems: 256,
    description: 'The program, by path or by name, and its arguments; no shell reads them',
  }),
  stdin: Type.Optional(Type.String({ maxLength: 1024 * 1024, description: 'At most 1 MiB in UTF-8' })),
  timeout_seconds: Type.Optional(
    Type.Integer({ minimum: 1, maximum: MAX_TIMEOUT_S, default: DEFAULT_TIMEOUT_S }),
  ),
});
const ExecResult = named('ExecResult', {
  exit_code: nullable(
    Type.Integer({
      description:
        'null: its time was over and it was killed; 128 + n: signal n ended it; 127: no such program',
    }),
  ),
  stdout: Type.String({ maxLength: MAX_OUTPUT, description: 'As UTF-8; the first MiB' }),
  stderr: Type.String({ maxLength: MAX_OUTPUT, description: 'As UTF-8; the first MiB' }),
  truncated: Type.Boolean({ description: 'stdout or stderr went on' }),
});

export function registerVmExec(app: App, context: AppContext): void {
  app.route({
    method: 'POST',
    url: '/v1/instances/:id/vm/exec',
    config: { access: 'vm:write' },
    bodyLimit: BODY_LIMIT_BYTES,
    schema: {
      operationId: 'execInVm',
      summary: 'Run a command in the guest, as root, and wait for its end',
      description:
        'In `/`, in a session of its own, through the guest agent. At `timeout_seconds` the command and what it started in its session are killed, and what it printed by then is answered with `exit_code` null. The audit log keeps the program, not its arguments. It takes no Idempotency-Key, since nothing of a command is kept: sent again, it runs again.',
      tags: ['VM'],
      params: InstanceParams,
      body: ExecRequest,
      response: {
        200: ExecResult,
        ...errors(...COMMON, 'NOT_FOUND', 'CONFLICT', 'VM_NOT_RUNNING', 'PAYLOAD_TOO_LARGE'),
      },
    },
    handler: async (request, reply) => {
      const id = instanceId(request.params);
      const { command, stdin = '', timeout_seconds = DEFAULT_TIMEOUT_S } = request.body;
      checkCommand({ command, stdin });
      const { body: place } = await mutate(
        context,
        request,
        reply,
        { action: 'vm.exec' },
        async (tx, principal) => {
          const found = await placeOfCommand(tx, principal, id);
          // Arguments often hold secrets. Half a character, given or cut, would be refused as JSON.
          const program = (command[0] ?? '').slice(0, AUDITED_CHARACTERS).toWellFormed();
          return { status: 200, body: found, target: id, data: { vm_id: found.vm_id, program } };
        },
      );
      const wanted = { command, stdin, timeout_ms: timeout_seconds * 1000 };
      const { db, host_calls, heartbeat_ms: mark_used_every_ms } = context;
      return runInGuest({ db, host_calls, mark_used_every_ms }, place, wanted, hangUp(reply));
    },
  });
}
