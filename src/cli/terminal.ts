/**
 * Writes a command's output and reads the user's input. Results go to stdout: tables for people, JSON with --json, ids
 * or names alone with -q, records with --format csv or json. Progress goes to stderr, and only if that is a terminal.
 */
import { createInterface } from 'node:readline/promises';
import { withoutControls as plain } from '../shared/untrusted-text.ts';
import type { Call } from './command.ts';
import { CommandError, EXIT, UsageError } from './command-error.ts';
import { duration, fields, formatList, type Layout, type Listing, USUAL_LAYOUT } from './table.ts';

const FRAMES = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'] as const;
const FRAME_MS = 100;
const MAX_STDIN_BYTES = 1024 * 1024;

export type Format = 'human' | 'json' | 'quiet' | 'records';

/** A progress line. */
export interface Progress {
  /** Whether it is visible. */
  readonly shown: boolean;
  say(text: string): void;
  end(): void;
}

export class Terminal {
  readonly format: Format;
  readonly #layout: Layout;
  #progress: Progress | undefined;

  constructor(format: Format, layout: Layout = USUAL_LAYOUT) {
    this.format = format;
    this.#layout = layout;
  }

  get interactive(): boolean {
    return process.stdin.isTTY === true && process.stderr.isTTY === true;
  }

  /** Text for people; nothing for programs. */
  say(text: string): void {
    if (this.format === 'human' && this.#layout.format === 'table') this.write(`${text}\n`);
  }

  /** What to type next, for a person at a terminal. */
  hint(text: string): void {
    if (this.format === 'human' && process.stdout.isTTY === true) this.warn(text);
  }

  write(text: string): void {
    this.#progress?.end();
    process.stdout.write(plain(text));
  }

  /** Guest output: unchanged to a pipe, without control sequences to a terminal. */
  guest(text: string, stream: 'stdout' | 'stderr' = 'stdout'): void {
    this.#progress?.end();
    process[stream].write(process[stream].isTTY ? plain(text) : text);
  }

  /** Our own text with colours: only on a terminal, and only for people. */
  picture(text: string): void {
    if (this.format === 'human' && process.stdout.isTTY) process.stdout.write(text);
  }

  json(value: unknown): void {
    process.stdout.write(`${escaped(JSON.stringify(value, null, 2))}\n`);
  }

  /** One line of JSON, for streams. */
  jsonLine(value: unknown): void {
    process.stdout.write(`${escaped(JSON.stringify(value))}\n`);
  }

  /** To stderr, in every format. */
  warn(text: string): void {
    this.#progress?.end();
    process.stderr.write(`${plain(text)}\n`);
  }

  /** @throws UsageError for an unknown column */
  list<T>(items: readonly T[], listing: Listing<T>): void {
    this.write(this.listText(items, listing));
  }

  /** @throws UsageError for an unknown column */
  listText<T>(items: readonly T[], listing: Listing<T>): string {
    if (this.format === 'json') return escaped(`${JSON.stringify(items, null, 2)}\n`);
    if (this.format === 'quiet') return items.map((item) => `${listing.quiet(item)}\n`).join('');
    const text = formatList(items, listing, this.#layout);
    return this.#layout.format === 'json' ? escaped(text) : text;
  }

  /** One record. */
  one<T>(
    item: T,
    {
      rows,
      quiet,
    }: {
      readonly rows: (item: T) => readonly (readonly [string, string])[];
      readonly quiet: (item: T) => string;
    },
  ): void {
    if (this.format === 'json') this.json(item);
    else this.write(this.format === 'quiet' ? `${quiet(item)}\n` : fields(rows(item)));
  }

  /** The result of a change: a sentence, the API's answer, or an id. */
  done(sentence: string, value: unknown, quiet?: string): void {
    if (this.format === 'json') this.json(value ?? {});
    else if (this.format === 'human') this.say(sentence);
    else if (quiet !== undefined) this.write(`${quiet}\n`);
  }

  /** Only on a terminal, with the elapsed seconds. The caller must end it. */
  progress(text: string): Progress {
    if (process.stderr.isTTY !== true || this.format !== 'human') {
      return { shown: false, say: () => undefined, end: () => undefined };
    }
    const began = performance.now();
    let now = text;
    let frame = 0;
    const draw = () => {
      frame = (frame + 1) % FRAMES.length;
      const passed_s = Math.floor((performance.now() - began) / 1_000);
      const passed =
        passed_s === 0 ? '' : ` (${passed_s < 10 ? `${passed_s} s` : duration(passed_s * 1_000)})`;
      const line = `${FRAMES[frame]} ${plain(now)}${passed}`;
      process.stderr.write(`\r\u001b[2K${line.slice(0, (process.stderr.columns || 80) - 1)}`);
    };
    const timer = setInterval(draw, FRAME_MS);
    draw();
    const progress: Progress = {
      shown: true,
      say: (next) => {
        now = next;
      },
      end: () => {
        clearInterval(timer);
        if (this.#progress === progress) {
          this.#progress = undefined;
          process.stderr.write('\r\u001b[2K');
        }
      },
    };
    this.#progress = progress;
    return progress;
  }

  /** @param again the option that answers it. @throws CommandError without a terminal */
  async ask(question: string, otherwise: string | null, again: string | null = null): Promise<string> {
    if (!this.interactive) {
      if (otherwise !== null) return otherwise;
      throw new CommandError(`this needs an answer to “${question}”, and there is no terminal to ask on`, {
        again,
        exit_code: EXIT.usage,
      });
    }
    const readline = createInterface({ input: process.stdin, output: process.stderr });
    try {
      const answer = await readline.question(
        plain(otherwise === null ? `${question}: ` : `${question} [${otherwise}]: `),
      );
      return answer.trim() || (otherwise ?? '');
    } catch {
      // Ctrl-C or Ctrl-D at the prompt.
      throw new CommandError('no answer was given', { exit_code: EXIT.interrupted });
    } finally {
      readline.close();
    }
  }

  /** Asks without echo. @throws CommandError without a terminal */
  async askSecret(question: string): Promise<string> {
    if (!this.interactive) {
      throw new CommandError(`this needs an answer to “${question}”, and there is no terminal to ask on`, {
        next: 'berth login --password-stdin',
        again: '--password-stdin',
        exit_code: EXIT.usage,
      });
    }
    // Before the prompt, so that early input has no echo either.
    process.stdin.setRawMode(true);
    try {
      process.stderr.write(`${plain(question)}: `);
      process.stdin.setEncoding('utf8').resume();
      return await typedLine();
    } finally {
      process.stdin.setRawMode(false);
      process.stdin.pause();
      process.stderr.write('\n');
    }
  }

  /** All of stdin, up to 1 MiB of UTF-8. */
  async stdin(): Promise<string> {
    const chunks: Buffer[] = [];
    let size = 0;
    for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
      size += chunk.length;
      if (size > MAX_STDIN_BYTES) throw new CommandError('there is more than 1 MiB on stdin');
      chunks.push(chunk);
    }
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Buffer.concat(chunks));
    } catch {
      throw new CommandError('stdin is not UTF-8 text');
    }
  }
}

/** Escapes terminal controls (U+007F to U+009F) and reordering or hiding characters, which JSON leaves as they are. */
function escaped(json: string): string {
  // In UTF-16 units: a character beyond the first plane has two.
  const unit = (each: string, at: number) => `\\u${each.charCodeAt(at).toString(16).padStart(4, '0')}`;
  return json.replace(/[\u007f-\u009f]|\p{Cf}/gu, (each) =>
    [...Array(each.length).keys()].map((at) => unit(each, at)).join(''),
  );
}

/** Reads a line in raw mode, and handles editing keys itself. */
function typedLine(): Promise<string> {
  return new Promise((resolve, reject) => {
    let typed = '';
    const stop = () => process.stdin.off('data', onData);
    const onData = (chunk: string) => {
      for (const character of chunk) {
        if (character === '\r' || character === '\n') {
          stop();
          return resolve(typed);
        }
        if (character === '\u0003' || character === '\u0004') {
          stop();
          return reject(new CommandError('no answer was given', { exit_code: EXIT.interrupted }));
        }
        if (character === '\u007f' || character === '\b') typed = [...typed].slice(0, -1).join('');
        else if (character === '\u0015') typed = '';
        else typed += character;
      }
    };
    process.stdin.on('data', onData);
  });
}

/** Asks before a command does something that its name does not say. */
export interface Question {
  /** `Delete web with its disk?` */
  readonly ask: string;
  /** Without a terminal: what stands in the way. The error adds the command with `--yes`. */
  readonly refusal: string;
  /** After a no. */
  readonly undone: string;
}

/** Returns at once with `--yes`. @throws CommandError after a no, or without a terminal */
export async function confirm({ options, terminal }: Call, question: Question): Promise<void> {
  if (options.flag('yes')) return;
  if (!terminal.interactive) {
    throw new CommandError(question.refusal, { again: '--yes', exit_code: EXIT.usage });
  }
  const answer = await terminal.ask(`${question.ask} (yes/no)`, 'no');
  if (!/^y(es)?$/i.test(answer)) throw new CommandError(question.undone);
}

export const YES = { yes: { type: 'boolean', short: 'y', help: 'do not ask' } } as const;

/** A password that is set: from stdin, or typed twice. */
export async function newPassword({ terminal, options }: Pick<Call, 'terminal' | 'options'>, what: string) {
  if (options.flag('password-stdin')) return (await terminal.stdin()).split('\n')[0] ?? '';
  return typedTwice({ terminal }, what);
}

export async function typedTwice({ terminal }: Pick<Call, 'terminal'>, what: string): Promise<string> {
  const first = await terminal.askSecret(`${what}, 12 characters or more`);
  const second = await terminal.askSecret(`${what} again`);
  if (first !== second) throw new CommandError('the two are not the same; nothing was changed');
  return first;
}

/** @throws UsageError */
export function mailTokenOf(text: string): string {
  const hash = URL.canParse(text) ? new URL(text).hash.slice(1) : '';
  const token = new URLSearchParams(hash).get('token') ?? text;
  if (/^berth_mail_\w+$/.test(token)) return token;
  throw new UsageError('that is neither the link nor the token of a mail');
}

/** The server of a link; undefined for a token. */
export function serverOfLink(text: string): string | undefined {
  return URL.canParse(text) ? new URL(text).origin : undefined;
}
