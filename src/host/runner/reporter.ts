import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { FlushFailure, FlushReport, KeysReport, Report, ReportResponse } from '../../protocol/types.ts';
import { backoffMs, pause } from '../../shared/backoff.ts';
import type { HostContext } from '../host-context.ts';

/** Reports observations to the control plane, and retries until it has answered. */
export class Reporter {
  readonly #context: Pick<HostContext, 'client' | 'log'>;
  readonly #closing: AbortSignal;

  readonly #beforeReport: () => Promise<void>;

  /** `beforeReport`: tells the control plane what an observation would end there. */
  constructor(
    context: Pick<HostContext, 'client' | 'log'>,
    closing: AbortSignal,
    beforeReport: () => Promise<void>,
  ) {
    this.#beforeReport = beforeReport;
    this.#context = context;
    this.#closing = closing;
  }

  /** `fenced`: the VM belongs to another placement. @throws the closing signal's reason */
  async report(report: Report): Promise<ReportResponse['outcome']> {
    const { outcome } = await this.#untilAnswered(async () => {
      await this.#beforeReport();
      return this.#context.client.report(report);
    });
    return outcome;
  }

  async suspended(report: Report): Promise<ReportResponse['outcome']> {
    return (await this.#untilAnswered(() => this.#context.client.report(report))).outcome;
  }

  async flush(report: FlushReport): Promise<void> {
    await this.#untilAnswered(() => this.#context.client.reportFlush(report));
  }

  async flushFailure(failure: FlushFailure): Promise<void> {
    await this.#untilAnswered(() => this.#context.client.reportFlushFailure(failure));
  }

  async keys(report: KeysReport): Promise<void> {
    await this.#untilAnswered(() => this.#context.client.reportKeys(report));
  }

  async #untilAnswered(send: () => Promise<ReportResponse>): Promise<ReportResponse> {
    for (let attempt = 0; ; attempt++) {
      this.#closing.throwIfAborted();
      try {
        return await send();
      } catch (error) {
        if (!(error instanceof ControlPlaneUnavailable)) throw error;
        if (attempt === 3) this.#context.log.warn('reports wait for the control plane');
        await pause(backoffMs(attempt, 100, 2_000), this.#closing);
      }
    }
  }
}
