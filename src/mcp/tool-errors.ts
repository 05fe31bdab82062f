/** A failure as the text of a tool error: the code, what happened, and what to do next. */
import { BerthConnectionError, BerthError, OutputLostError, VmWaitError } from '../../client/src/berth.ts';

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
