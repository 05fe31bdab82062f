import type { CallFailure } from '../../protocol/host-calls.ts';

/** Why a call failed, with a message for its caller. */
export class CallError extends Error {
  override name = 'CallError';
  readonly code: CallFailure['code'];

  constructor(code: CallFailure['code'], message: string) {
    super(message);
    this.code = code;
  }
}
