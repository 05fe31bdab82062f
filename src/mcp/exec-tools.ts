/**
 * The MCP tools that run commands in a guest, read their output and end them. A command continues after the call that
 * started it.
 */
import { Type } from 'typebox';
import type { Exec, ExecHandle } from '../../client/src/berth.ts';
import { withoutControls } from '../shared/untrusted-text.ts';
import {
  DESTROYS,
  INSTANCE,
  incompleteEnd,
  READS,
  TextWindow,
  type Tool,
  type ToolAnswer,
  tool,
  toolInput,
} from './tool.ts';

/** About 5,000 tokens. */
const OUTPUT_BYTES = 20_000;
const ENDS = { head_bytes: OUTPUT_BYTES / 2, tail_bytes: OUTPUT_BYTES / 2 };
/** Less than clients wait for an answer, which is a minute with most. */
const MAX_WAIT_S = 50;
const DEFAULT_WAIT_S = 30;
const DEFAULT_READ_WAIT_S = 10;
const MAX_TIMEOUT_S = 30 * 24 * 3600;

const EXEC_ID = Type.String({ minLength: 1, maxLength: 64, description: 'From exec: `exec_…`' });
const wait = (default_s: number) =>
  Type.Optional(
    Type.Integer({
      minimum: 1,
      maximum: MAX_WAIT_S,
      default: default_s,
      description: 'How long to wait for the end of the command; it runs on afterwards',
    }),
  );

/**
 * Reads output until the command ends, `wait_s` has passed, or `take` has enough and returns false. True: there may be more.
 * @throws OutputLostError
 */
async function follow(
  handle: ExecHandle,
  {
    offset,
    wait_s,
    signal,
  }: { readonly offset: number; readonly wait_s: number; readonly signal: AbortSignal },
  take: (bytes: Uint8Array) => boolean,
): Promise<boolean> {
  const patience = AbortSignal.timeout(wait_s * 1_000);
  try {
    for await (const piece of handle.output({ offset, signal: AbortSignal.any([signal, patience]) })) {
      if (!take(piece.data)) return true;
    }
  } catch (error) {
    signal.throwIfAborted();
    if (!patience.aborted) throw error;
    return true;
  }
  return false;
}

function endOf({ state, exit_code, signal, timed_out, lost_with }: Exec): string {
  if (lost_with === 'supervisor')
    return 'Lost: something in the guest ended the process that runs commands there, as kill -9 -1 does. The VM did not restart.';
  if (state === 'lost') return 'Lost: the VM restarted or stopped before the command ended.';
  if (timed_out) return 'Killed at its timeout.';
  if (exit_code === null) return `Ended by ${signal ?? 'a signal'}.`;
  return `Exit code ${exit_code}${exit_code === 127 ? ' (127: no such program)' : ''}.`;
}

/** A progress bar returns to the start of its line; here each state of it is a line. */
function answer(text: string, output: string): ToolAnswer {
  if (output === '') return { text: `${text} No output.` };
  return { text, of_guest: withoutControls(output.replace(/\r\n?/g, '\n')) };
}

const EXEC = tool({
  name: 'exec',
  title: 'Run a command',
  description: `Runs a line of the shell in the guest, as root unless \`user\` is given, and returns exit code and output (stdout and stderr together). Of more than ${OUTPUT_BYTES} bytes of output the middle is left out. A command that still runs after wait_seconds runs on: use exec_output and kill_exec with its id. The command can do anything that its user can do in the guest, such as deleting files, and reach what the egress policy of the instance allows. Input is closed.`,
  input: toolInput({
    instance: INSTANCE,
    command: Type.String({ minLength: 1, maxLength: 100_000, description: 'For `sh -c`' }),
    cwd: Type.Optional(Type.String({ minLength: 1, maxLength: 4095, description: 'Default: /' })),
    user: Type.Optional(Type.String({ minLength: 1, maxLength: 64, description: 'Default: root' })),
    env: Type.Optional(Type.Record(Type.String(), Type.String(), { maxProperties: 256 })),
    wait_seconds: wait(DEFAULT_WAIT_S),
    timeout_seconds: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: MAX_TIMEOUT_S,
        description: 'Kill the command after this time; default: never',
      }),
    ),
  }),
  hints: { ...DESTROYS, idempotentHint: false, openWorldHint: true },
  needs: 'vm:write, vm:read',
  run: async ({ berth, args, signal }) => {
    const { instance, command, wait_seconds = DEFAULT_WAIT_S, ...settings } = args;
    const { id } = await berth.instances.find(instance, { signal });
    const started = await berth.vm(id).startExec(command, { ...settings, signal });
    const window = new TextWindow(ENDS);
    const unfinished = await follow(started, { offset: 0, wait_s: wait_seconds, signal }, (bytes) => {
      window.push(bytes);
      return true;
    });
    const { head, tail, cut } = window.read();
    const end = unfinished
      ? `Still running after ${wait_seconds} s, as ${started.id}. exec_output with offset ${window.total} waits for more; kill_exec ends it.`
      : endOf(started.exec);
    if (cut === null) return answer(end, head);
    const rest = `exec_output of ${started.id} with offset ${cut.at} shows them`;
    const size = `${window.total} bytes of output; ${cut.bytes} of them, at […], are left out: ${rest}.`;
    return answer(`${end} ${size}`, `${head}\n[…]\n${tail}`);
  },
});

const OUTPUT = tool({
  name: 'exec_output',
  title: 'Read the output of a command',
  description: `Returns up to ${OUTPUT_BYTES} bytes of the output of a command that exec started, from an offset on. Waits while it runs and prints nothing. The last 8 MiB of each command are kept; an offset before them is an error that names the first kept one.`,
  input: toolInput({
    instance: INSTANCE,
    exec_id: EXEC_ID,
    offset: Type.Optional(
      Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER, default: 0, description: 'In bytes' }),
    ),
    wait_seconds: wait(DEFAULT_READ_WAIT_S),
  }),
  hints: READS,
  needs: 'vm:read',
  run: async ({ berth, args, signal }) => {
    const { id } = await berth.instances.find(args.instance, { signal });
    const { offset = 0, wait_seconds: wait_s = DEFAULT_READ_WAIT_S } = args;
    const handle = await berth.vm(id).attachExec(args.exec_id, { signal });
    let page = Buffer.alloc(0);
    const unfinished = await follow(handle, { offset, wait_s, signal }, (bytes) => {
      page = Buffer.concat([page, bytes]);
      return page.length < OUTPUT_BYTES;
    });
    const bytes = page.subarray(0, OUTPUT_BYTES);
    const shown = unfinished ? bytes.subarray(0, bytes.length - incompleteEnd(bytes)) : bytes;
    const next = offset + shown.length;
    const more = page.length < OUTPUT_BYTES ? 'Still running; more' : 'More';
    const end = unfinished ? `${more} from offset ${next}.` : endOf(handle.exec);
    return answer(`Bytes ${offset} to ${next}. ${end}`, shown.toString('utf8'));
  },
});

const KILL = tool({
  name: 'kill_exec',
  title: 'End a command',
  description:
    'Ends a command that exec started, with its process group, at once. Lost: what those processes held in memory. Its output stays.',
  input: toolInput({ instance: INSTANCE, exec_id: EXEC_ID }),
  hints: DESTROYS,
  needs: 'vm:write',
  run: async ({ berth, args, signal }) => {
    const { id } = await berth.instances.find(args.instance, { signal });
    await berth.call('killExec', { path: { id, exec_id: args.exec_id } }, { signal });
    return { text: `${args.exec_id} is ended.` };
  },
});

export const EXEC_TOOLS: readonly Tool[] = [EXEC, OUTPUT, KILL];
