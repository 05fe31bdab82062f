/** The only reader of the process's environment. Nothing is judged here; `config.ts` does that. */
export type Env = Readonly<Record<string, string | undefined>>;

/** A copy of the environment as it is now. */
export function readEnv(): Env {
  return { ...process.env };
}
