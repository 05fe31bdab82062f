/**
 * The shell of a simulated guest. It knows words in quotes, `;`, `&&`, `>` and `>>`, and some programs, which work on
 * the guest's files in memory. It runs no program of the simulator's machine. An unknown program exits with 127, as in
 * a real shell.
 */
import { rfc3339 } from '../../src/shared/clock.ts';
import { Signal } from '../../src/shared/concurrency.ts';
import { FileRefusal, type FileTree } from './file-tree.ts';

/** What a program sees of its guest. */
export interface ShellGuest {
  readonly files: FileTree;
  readonly hostname: string;
  /** `off`: the guest powers off. `crash`: its kernel panics. */
  readonly power: (what: 'off' | 'reboot' | 'crash') => void;
}

/** A process of a guest. */
export interface Process {
  readonly guest: ShellGuest;
  readonly environment: readonly string[];
  readonly input: Input;
  /** 1: stdout, 2: stderr. */
  readonly write: (stream: 1 | 2, data: Buffer | string) => void;
  readonly signal: AbortSignal;
  /** A person types at a terminal, and may interrupt the program. Null: nobody does. */
  readonly interrupts: Signal | null;
}

/** What is written to a process and not read yet. */
export class Input {
  readonly #chunks: Buffer[] = [];
  readonly #changed = new Signal();
  #ended = false;

  get ended(): boolean {
    return this.#ended;
  }

  push(data: Buffer): void {
    if (data.length > 0) this.#chunks.push(data);
    this.#changed.notify();
  }

  end(): void {
    this.#ended = true;
    this.#changed.notify();
  }

  /** Null: it has ended. @throws the signal's reason */
  async read(signal: AbortSignal): Promise<Buffer | null> {
    while (this.#chunks.length === 0 && !this.#ended) {
      await this.#changed.wait({ signal });
      signal.throwIfAborted();
    }
    return this.#chunks.shift() ?? null;
  }
}

type Program = (process: Process, args: readonly string[]) => number | Promise<number>;

const PROGRAMS: Readonly<Record<string, Program>> = {
  true: () => 0,
  ':': () => 0,
  false: () => 1,
  exit: (_, [code = '0']) => Number(code) & 255,
  help: ({ write }) => {
    write(1, `The programs of a simulated guest: ${Object.keys(PROGRAMS).join(' ')}\n`);
    return 0;
  },
  echo: ({ write }, args) => {
    write(1, `${args.join(' ')}\n`);
    return 0;
  },
  pwd: ({ write }) => {
    write(1, '/\n');
    return 0;
  },
  hostname: ({ guest, write }) => {
    write(1, `${guest.hostname}\n`);
    return 0;
  },
  whoami: ({ write }) => {
    write(1, 'root\n');
    return 0;
  },
  date: ({ write }) => {
    write(1, `${rfc3339(new Date())}\n`);
    return 0;
  },
  env: ({ environment, write }) => {
    write(1, environment.map((line) => `${line}\n`).join(''));
    return 0;
  },
  sleep: ({ signal }, [seconds = '0']) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => resolve(0), Number(seconds) * 1_000);
      signal.addEventListener('abort', () => {
        clearTimeout(timer);
        reject(signal.reason);
      });
    }),
  cat: async ({ guest, input, write, signal }, paths) => {
    for (const path of paths) write(1, guest.files.read(path));
    if (paths.length > 0) return 0;
    for (let chunk = await input.read(signal); chunk !== null; chunk = await input.read(signal))
      write(1, chunk);
    return 0;
  },
  ls: ({ guest, write }, args) => {
    const [path = '/'] = args.filter((each) => !each.startsWith('-'));
    write(
      1,
      guest.files
        .list(path)
        .map((name) => `${name}\n`)
        .join(''),
    );
    return 0;
  },
  mkdir: ({ guest }, args) => {
    for (const path of args.filter((each) => !each.startsWith('-'))) guest.files.makeFolder(path);
    return 0;
  },
  rm: ({ guest }, args) => {
    for (const path of args.filter((each) => !each.startsWith('-')))
      guest.files.remove(
        path,
        args.some((each) => /^-\w*r/.test(each)),
      );
    return 0;
  },
  sync: () => 0,
  poweroff: ({ guest }) => {
    guest.power('off');
    return 0;
  },
  reboot: ({ guest }) => {
    guest.power('reboot');
    return 0;
  },
  crash: ({ guest }) => {
    guest.power('crash');
    return 0;
  },
  sh: shell,
  bash: shell,
};

const NOT_FOUND = 127;
const INTERRUPTED = 130;

/** Its exit code. @throws the signal's reason when it is killed */
export async function runProgram(process: Process, [name = '', ...args]: readonly string[]): Promise<number> {
  const program = PROGRAMS[name.slice(name.lastIndexOf('/') + 1)];
  if (!program) {
    process.write(2, `${name}: not in the simulated guest; help lists what is\n`);
    return NOT_FOUND;
  }
  // A shell goes on after the interrupt of what it runs.
  const interrupted = new AbortController();
  const unsubscribe =
    program === shell ? undefined : process.interrupts?.subscribe(() => interrupted.abort());
  const signal = AbortSignal.any([process.signal, interrupted.signal]);
  try {
    return await program({ ...process, signal }, args);
  } catch (error) {
    if (interrupted.signal.aborted && !process.signal.aborted) return INTERRUPTED;
    if (!(error instanceof FileRefusal)) throw error;
    process.write(2, `${name}: ${error.message}\n`);
    return 1;
  } finally {
    unsubscribe?.();
  }
}

/** `sh -c SCRIPT`, or the lines of its input. */
async function shell(process: Process, args: readonly string[]): Promise<number> {
  const at = args.findIndex((each) => /^-\w*c$/.test(each));
  if (at >= 0) return runScript(process, args[at + 1] ?? '');
  const prompt = process.interrupts ? `root@${process.guest.hostname}:~# ` : '';
  let code = 0;
  let rest = '';
  process.write(1, prompt);
  for (;;) {
    const chunk = await process.input.read(process.signal);
    const lines = `${rest}${chunk?.toString('utf8') ?? '\n'}`.split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (/^\s*exit\b/.test(line)) return runScript(process, line);
      code = await runScript(process, line);
      process.write(1, chunk === null ? '' : prompt);
    }
    if (chunk === null) return code;
  }
}

const WORD = /\s*(&&|;|\n|>>|>|(?:"[^"]*"|'[^']*'|[^\s"';&>])+)/y;

async function runScript(process: Process, script: string): Promise<number> {
  let code = 0;
  let words: string[] = [];
  let skips = false;
  const runOne = async () => {
    if (words.length > 0 && !skips) code = await runRedirected(process, words);
    words = [];
  };
  const scanner = new RegExp(WORD);
  for (let found = scanner.exec(script); found !== null; found = scanner.exec(script)) {
    const word = found[1] ?? '';
    if (word === ';' || word === '\n' || word === '&&') {
      await runOne();
      skips = word === '&&' && (skips || code !== 0);
    } else words.push(word);
    if (scanner.lastIndex === script.length) break;
  }
  await runOne();
  return code;
}

async function runRedirected(process: Process, words: readonly string[]): Promise<number> {
  const at = words.findIndex((each) => each === '>' || each === '>>');
  if (at < 0) return runProgram(process, words.map(unquoted));
  const path = unquoted(words[at + 1] ?? '');
  const { files } = process.guest;
  const parts: Buffer[] = [];
  const write: Process['write'] = (stream, data) => {
    if (stream === 1) parts.push(Buffer.from(data));
    else process.write(stream, data);
  };
  const code = await runProgram({ ...process, write }, words.slice(0, at).map(unquoted));
  try {
    const parent = path.slice(0, path.lastIndexOf('/'));
    const name = path.slice(parent.length).replace('/', '');
    const before = words[at] === '>>' && files.list(parent).includes(name) ? files.read(path) : '';
    files.write(path, Buffer.concat([Buffer.from(before), ...parts]));
    return code;
  } catch (error) {
    if (!(error instanceof FileRefusal)) throw error;
    process.write(2, `sh: ${path}: ${error.message}\n`);
    return 1;
  }
}

function unquoted(word: string): string {
  return word.replace(
    /"([^"]*)"|'([^']*)'/g,
    (_, double?: string, single?: string) => double ?? single ?? '',
  );
}
