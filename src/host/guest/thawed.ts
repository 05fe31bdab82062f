/** Calls of the guest's agent that it refuses while its file systems are frozen: files and commands. */
import { pause } from '../../lib/backoff.ts';
import { GuestAgentError } from './agent-errors.ts';
import type { GuestAgent } from './guest-agent.ts';

/** Of a slow guest: what was begun is to be known by its pid, and what was opened by its handle, else nobody could end it. */
export const START_MS = 5_000;
/** A flush freezes for milliseconds; whoever finds the guest frozen for longer hears of it. */
export const FROZEN_MS = 5_000;
const FIRST_POLL_MS = 5;
const MAX_POLL_MS = 250;

/** As `agent.execute`; refused because a flush has frozen the guest, which takes milliseconds, it is asked again. */
export async function executeThawed(
  agent: GuestAgent,
  command: string,
  args: Record<string, unknown>,
  deadline: number,
): Promise<unknown> {
  const patience = Math.min(deadline, performance.now() + FROZEN_MS);
  for (let wait_ms = FIRST_POLL_MS; ; wait_ms = Math.min(MAX_POLL_MS, wait_ms * 2)) {
    try {
      return await agent.execute(command, args, { timeout_ms: Math.max(1, deadline - performance.now()) });
    } catch (error) {
      // qemu-ga's words: "Command guest-exec has been disabled: the agent is in frozen state"
      const frozen = error instanceof GuestAgentError && /frozen|disabled/i.test(error.desc);
      if (!frozen || performance.now() + wait_ms >= patience) throw error;
      await pause(wait_ms);
    }
  }
}
