/**
 * Defines what an MCP tool is ({@link Tool}): its arguments, the hints on what it may change, and the function that
 * calls the API. Also has what several tools share: waits for a VM, texts of errors, and long outputs cut to a bounded
 * size.
 */
import { type Static, type TSchema, Type } from 'typebox';
import {
  type Berth,
  BerthConnectionError,
  BerthError,
  type Instance,
  OutputLostError,
  type Vm,
  VmWaitError,
} from '../../client/src/berth.ts';

/** What a client may rely on before it asks its user. Every tool states all four. */
export interface ToolHints {
  /** It changes nothing. */
  readonly readOnlyHint: boolean;
  /** It may lose something; the description says what. */
  readonly destructiveHint: boolean;
  /** A repetition with the same arguments changes nothing more. */
  readonly idempotentHint: boolean;
  /** It reaches, or lets others reach, more than this installation. */
  readonly openWorldHint: boolean;
}

/** Sentences of Berth, and what a guest says in a block of its own, so that a reader can tell them apart. */
export interface ToolAnswer {
  readonly text: string;
  readonly of_guest?: string;
}

export interface ToolCall<A> {
  /** With the credential of the caller. */
  readonly berth: Berth;
  readonly args: A;
  /** Aborts when the caller cancels the call, or disconnects. */
  readonly signal: AbortSignal;
}

export interface Tool {
  readonly name: string;
  readonly title: string;
  readonly description: string;
  readonly input: TSchema;
  readonly hints: ToolHints;
  /** The scopes beside instances:read, with which every tool looks its instance up. For docs/mcp.md. */
  readonly needs: string;
  readonly run: (call: ToolCall<unknown>) => Promise<ToolAnswer>;
}

interface Definition<S extends TSchema> extends Omit<Tool, 'input' | 'run'> {
  readonly input: S;
  readonly run: (call: ToolCall<Static<S>>) => Promise<ToolAnswer>;
}

/** The arguments are checked against `input` before `run`. */
export function tool<S extends TSchema>(definition: Definition<S>): Tool {
  return { ...definition, run: (call) => definition.run(call as ToolCall<Static<S>>) };
}

export const READS: ToolHints = {
  readOnlyHint: true,
  destructiveHint: false,
  idempotentHint: true,
  openWorldHint: false,
};
export const ADDS: ToolHints = { ...READS, readOnlyHint: false, idempotentHint: false };
export const SETS: ToolHints = { ...READS, readOnlyHint: false };
export const DESTROYS: ToolHints = { ...SETS, destructiveHint: true };

/** No other properties: a misspelt one is told to the model. */
export function toolInput<P extends Record<string, TSchema>>(properties: P) {
  return Type.Object(properties, { additionalProperties: false });
}

export const INSTANCE = Type.String({
  minLength: 1,
  maxLength: 63,
  description: 'Name or id of the instance',
});

/** Of a list. */
export const LIMIT = Type.Optional(Type.Integer({ minimum: 1, maximum: 200, default: 50 }));
export const CURSOR = Type.Optional(
  Type.String({ maxLength: 2048, description: 'From the end of the page before' }),
);

const isContinuation = (byte: number | undefined) => byte !== undefined && (byte & 0xc0) === 0x80;

/** How many bytes at the end begin a character of UTF-8 that they do not complete. */
export function incompleteEnd(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0;
    if (isContinuation(byte)) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

/** How many bytes at the start end a character that began before them. */
function incompleteStart(bytes: Uint8Array): number {
  let count = 0;
  while (count < 3 && isContinuation(bytes[count])) count++;
  return count;
}

export interface Cut {
  /** Where the first byte that is left out stands. */
  readonly at: number;
  readonly bytes: number;
}

/** Keeps the beginning and the end of a byte stream as text, never cut inside a character. */
export class TextWindow {
  readonly #head_bytes: number;
  readonly #tail_bytes: number;
  #head: Buffer = Buffer.alloc(0);
  #tail: Buffer = Buffer.alloc(0);
  #total = 0;

  constructor({ head_bytes, tail_bytes }: { readonly head_bytes: number; readonly tail_bytes: number }) {
    this.#head_bytes = head_bytes;
    this.#tail_bytes = tail_bytes;
  }

  get total(): number {
    return this.#total;
  }

  push(bytes: Uint8Array): void {
    this.#total += bytes.length;
    const room = this.#head_bytes - this.#head.length;
    if (room > 0) this.#head = Buffer.concat([this.#head, bytes.subarray(0, room)]);
    const rest = bytes.subarray(Math.max(0, room));
    if (rest.length === 0) return;
    this.#tail = Buffer.concat([this.#tail, rest.subarray(-this.#tail_bytes)]).subarray(-this.#tail_bytes);
  }

  /** The beginning, the end, and what is missing between them; `cut` is null where nothing is. */
  read(): { readonly head: string; readonly tail: string; readonly cut: Cut | null } {
    const kept = this.#head.length + this.#tail.length;
    if (kept === this.#total)
      return { head: Buffer.concat([this.#head, this.#tail]).toString('utf8'), tail: '', cut: null };
    const head = this.#head.subarray(0, this.#head.length - incompleteEnd(this.#head));
    const tail = this.#tail.subarray(incompleteStart(this.#tail));
    const cut = { at: head.length, bytes: this.#total - head.length - tail.length };
    return { head: head.toString('utf8'), tail: tail.toString('utf8'), cut };
  }
}

export const PATIENCE_MS = 45_000;

export interface Waited {
  readonly vm: Vm;
  readonly reached: boolean;
}

/** @throws VmWaitError if it failed, or will not reach the state by itself */
export async function waitForVm(
  berth: Berth,
  { id }: Pick<Instance, 'id'>,
  state: 'running' | 'stopped' | 'suspended',
  signal: AbortSignal,
): Promise<Waited> {
  const options = { begun: true, timeout_ms: PATIENCE_MS, signal };
  try {
    return { vm: await berth.instances.waitFor(id, state, options), reached: true };
  } catch (error) {
    const on_its_way = error instanceof VmWaitError && TRANSIENT.has(error.vm.state);
    if (!on_its_way) throw error;
    return { vm: error.vm, reached: false };
  }
}

const TRANSIENT: ReadonlySet<Vm['state']> = new Set(['starting', 'restarting', 'stopping', 'suspending']);

/** Of a VM that runs as it should. Another reason says what the caller must know: what was lost, or what is wrong. */
const EXPECTED: ReadonlySet<string> = new Set(['ready', 'resumed']);

/** Starts an instance that was just made. A failure is part of the sentence, because the instance exists nevertheless. */
export function startNew(berth: Berth, instance: Instance, signal: AbortSignal): Promise<string> {
  return startAndTell(berth, instance, signal).catch((error: unknown) => {
    signal.throwIfAborted();
    return `It is there, but does not run. ${toolErrorText(error)}`;
  });
}

/** Starts or resumes it. @returns a sentence about it */
export async function startAndTell(berth: Berth, instance: Instance, signal: AbortSignal): Promise<string> {
  const { id, name } = instance;
  await berth.instances.startVm(id, { signal });
  const { vm, reached } = await waitForVm(berth, instance, 'running', signal);
  if (!reached) return `${name} is still ${vm.state}. Call start_instance again to go on waiting.`;
  const is_news = vm.reason !== null && !EXPECTED.has(vm.reason.code);
  return `${name} is running.${is_news ? ` ${vm.reason?.message} (${vm.reason?.code})` : ''}`;
}

const NEXT: Partial<Record<BerthError['code'], string>> = {
  UNAUTHENTICATED: 'ask the user for a valid API key; this one is missing, expired or revoked',
  FORBIDDEN: 'ask the user for an API key with that scope, or do without this tool',
  NOT_FOUND: 'check the name with list_instances; an id of a command or port, with the tool that gave it',
  VM_NOT_RUNNING: 'start_instance, then try again',
  QUOTA_EXCEEDED: 'do what that says, or ask the user',
  DISK_FULL: 'free room in the guest with exec; the file is as it was',
  PRECONDITION_FAILED: 'look at what is there first',
  PAYLOAD_TOO_LARGE: 'send less at a time',
  INTERNAL: 'try again once; then tell the user the request id',
};

/** Of an error that passes by itself. */
function nextOf({ code, retry_after_seconds }: BerthError): string | undefined {
  if (code === 'RATE_LIMITED' || code === 'UNAVAILABLE' || code === 'IDEMPOTENCY_IN_PROGRESS')
    return `try again in ${retry_after_seconds ?? 5} s`;
  return NEXT[code];
}

/** A failure as the text of a tool error: the code, what happened, and what to do next. */
export function toolErrorText(error: unknown): string {
  if (error instanceof BerthError) {
    const { code, message, details, request_id, status } = error;
    const fields = details.filter(({ issue }) => !message.includes(issue));
    const next = nextOf(error);
    return [
      `${code}: ${message}`,
      ...fields.map(({ field, issue }) => `${field}: ${issue}`),
      ...(status >= 500 && request_id !== null ? [`Request: ${request_id}`] : []),
      ...(next === undefined ? [] : [`Next: ${next}.`]),
    ].join('\n');
  }
  if (error instanceof OutputLostError)
    return `OUTPUT_LOST: ${error.message}\nNext: exec_output with offset ${error.offset}.`;
  if (error instanceof VmWaitError)
    return `${error.vm.state.toUpperCase()}: ${error.message}\nNext: get_instance says more.`;
  if (error instanceof BerthConnectionError)
    return `NO_ANSWER: ${error.message}\nNext: try again; if that fails too, tell the user that Berth cannot be reached.`;
  throw error;
}
