/**
 * Sends the spans of this process to an OpenTelemetry collector. The modules of OpenTelemetry are loaded by this file
 * alone, and only if an endpoint is set. The exporter itself reads the standard variables for endpoint, headers,
 * timeout, compression and certificates.
 *
 * - Nothing waits for the collector, except `close`, for a second at most.
 * - At most 2,048 spans are queued. Further ones are dropped.
 * - Spans that the collector does not take are lost. This costs one log line a minute.
 */
import { hostname } from 'node:os';
import { DiagLogLevel, diag, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace } from '@opentelemetry/api';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto';
import {
  defaultResource,
  detectResources,
  envDetector,
  resourceFromAttributes,
} from '@opentelemetry/resources';
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type Sampler,
  type SpanExporter,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace';
import type { TracesConfig } from '../config/settings.ts';
import type { Log } from '../shared/log.ts';
import { pause } from '../shared/retry.ts';
import { type Attributes, type Tracer, useTracer } from '../shared/tracing.ts';

const CLOSE_MS = 1_000;
const LOG_EVERY_MS = 60_000;
const KINDS = { internal: SpanKind.INTERNAL, server: SpanKind.SERVER, client: SpanKind.CLIENT } as const;

export interface TraceSending {
  /** Sends what waits, for a second at most. */
  close(): Promise<void>;
}

export interface SendTracesOptions {
  /** The process, as its log names it. */
  readonly role: string;
  readonly traces: TracesConfig;
  readonly log: Log;
  /** How long spans wait for others; 5 s by default. */
  readonly delay_ms?: number;
}

/** Traces this process from now on. */
export function sendTraces({ role, traces, log, delay_ms = 5_000 }: SendTracesOptions): TraceSending {
  const note = noteInLog(log);
  // Of full queues, for example.
  diag.setLogger(
    { error: ignore, warn: note, info: ignore, debug: ignore, verbose: ignore },
    { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true },
  );
  const own = { 'service.name': `berth-${role}`, 'host.name': hostname() };
  const provider = new TracerProvider({
    resource: defaultResource()
      .merge(resourceFromAttributes(own))
      .merge(detectResources({ detectors: [envDetector] })),
    sampler: samplerOf(traces),
    spanProcessors: [
      new BatchSpanProcessor({
        exporter: noting(new OTLPTraceExporter(), note),
        scheduledDelayMillis: delay_ms,
      }),
    ],
  });
  useTracer(tracerOf(provider));
  return {
    close: async () => {
      useTracer(null);
      const enough = new AbortController();
      const sent = provider.shutdown().catch(() => undefined);
      await Promise.race([sent, pause(CLOSE_MS, enough.signal)]);
      enough.abort();
    },
  };
}

function tracerOf(provider: TracerProvider): Tracer {
  const tracer = provider.getTracer('berth');
  return {
    begin: (name, kind, attributes, parent) => {
      const options = { kind: KINDS[kind], attributes: present(attributes) };
      const span = tracer.startSpan(name, options, parent === null ? ROOT_CONTEXT : remote(parent));
      const { traceId, spanId, traceFlags } = span.spanContext();
      return {
        trace_id: traceId,
        span_id: spanId,
        traceparent: `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`,
        note: (more) => {
          span.setAttributes(present(more));
        },
        end: (error) => {
          if (error !== null)
            span.setAttribute('error.type', error).setStatus({ code: SpanStatusCode.ERROR });
          span.end();
        },
      };
    },
  };
}

function remote(traceparent: string) {
  const [, traceId = '', spanId = '', flags = ''] = traceparent.split('-');
  return trace.setSpanContext(ROOT_CONTEXT, {
    traceId,
    spanId,
    traceFlags: Number.parseInt(flags, 16),
    isRemote: true,
  });
}

function present(attributes: Attributes): Record<string, string | number | boolean> {
  const found: Record<string, string | number | boolean> = {};
  for (const [name, value] of Object.entries(attributes))
    if (value !== null && value !== undefined) found[name] = value;
  return found;
}

function samplerOf({ sampler, ratio }: TracesConfig): Sampler {
  const [, parent_based = '', kind] = /^(parentbased_)?(.*)$/.exec(sampler) ?? [];
  const root =
    kind === 'always_on'
      ? new AlwaysOnSampler()
      : kind === 'always_off'
        ? new AlwaysOffSampler()
        : new TraceIdRatioBasedSampler(ratio);
  return parent_based === '' ? root : new ParentBasedSampler({ root });
}

/** `exporter`, whose failures are told. */
function noting(exporter: SpanExporter, note: (reason: string) => void): SpanExporter {
  return {
    export: (spans, done) =>
      exporter.export(spans, (result) => {
        if (result.error) note(result.error.message);
        done(result);
      }),
    shutdown: () => exporter.shutdown(),
  };
}

/** Logs the first of the reasons in each minute. */
function noteInLog(log: Log): (reason: string) => void {
  let next_ms = 0;
  return (reason) => {
    if (performance.now() < next_ms) return;
    next_ms = performance.now() + LOG_EVERY_MS;
    log.warn({ reason: reason.slice(0, 200) }, 'traces are lost');
  };
}

function ignore(): void {}
