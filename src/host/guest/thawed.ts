/** Calls that the agent refuses while its file systems are frozen: files and commands. */
import { pause } from '../../shared/retry.ts';
import { type GuestAgent, GuestAgentError } from './guest-agent.ts';

/** The minimum for starting a command or opening a file in a slow guest: without its pid or handle it could not be ended. */
export const START_MS = 5_000;
/** A flush freezes for milliseconds. After this the call fails. */
export const FROZEN_MS = 5_000;
const FIRST_POLL_MS = 5;
const MAX_POLL_MS = 250;

/** Like `agent.execute`, retried while a flush has frozen the guest. */
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
      // qemu-ga's message: "Command guest-exec has been disabled: the agent is in frozen state"
      const frozen = error instanceof GuestAgentError && /frozen|disabled/i.test(error.desc);
      if (!frozen || performance.now() + wait_ms >= patience) throw error;
      await pause(wait_ms);
    }
  }
}
