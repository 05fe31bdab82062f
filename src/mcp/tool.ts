/** What a tool is: its arguments, what it may do, and how it calls the public API. */
import { type Static, type TSchema, Type } from 'typebox';
import type { Berth } from '../../client/src/berth.ts';

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
export function fields<P extends Record<string, TSchema>>(properties: P) {
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
