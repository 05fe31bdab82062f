import type { Env } from './env.ts';
import { Expected, problemLine, type Setting } from './settings.ts';

/** Reads single settings, and collects their problems. */
export class Reader {
  readonly problems: string[] = [];
  readonly #env: Env;

  constructor(env: Env) {
    this.#env = env;
  }

  text(name: string): string | null {
    return this.#env[name] || null;
  }

  /** The setting's value, or `fallback` when it is unset or invalid (which is recorded). */
  read<T, F>(name: Setting, parse: (text: string) => T, fallback: F): T | F {
    const text = this.text(name);
    if (text === null) return fallback;
    try {
      return parse(text);
    } catch (error) {
      if (!(error instanceof Expected)) throw error;
      this.problems.push(problemLine(name, text, error.message));
      return fallback;
    }
  }
}
