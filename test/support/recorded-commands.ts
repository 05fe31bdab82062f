/** Answers the commands of a simulated host, and notes each, so that a test sees one that ran twice. */
import type { ExecResult } from '../../src/protocol/host-calls.ts';

export class RecordedCommands {
  /** Each as one text. */
  readonly ran: string[] = [];
  /** A command that begins so is answered only when the test says so. */
  #held: { readonly command: string; readonly until: Promise<void> } | null = null;

  /** Returns the function that lets it be answered. */
  hold(command: string): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#held = { command, until: promise };
    return resolve;
  }

  readonly answerCommand = async (words: readonly string[]): Promise<ExecResult> => {
    const command = words.join(' ');
    this.ran.push(command);
    if (this.#held && command.startsWith(this.#held.command)) await this.#held.until;
    return { exit_code: 0, stdout: `ran ${command}`, stderr: '', truncated: false };
  };
}
