/** The only reader of the process's environment. `config.ts` validates it. */
export type Env = Readonly<Record<string, string | undefined>>;

/** A copy of the current environment. */
export function readEnv(): Env {
  return { ...process.env };
}
