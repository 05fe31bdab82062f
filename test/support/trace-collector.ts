/**
 * A collector of traces: takes OTLP over HTTP, and decodes the parts of the protobuf messages that tests read. The test
 * can make it refuse or hang.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { ProtobufReader } from './protobuf-reader.ts';

export interface CollectedSpan {
  readonly service: string;
  readonly name: string;
  readonly trace_id: string;
  readonly span_id: string;
  /** Null: it began the trace. */
  readonly parent_id: string | null;
  readonly attributes: Readonly<Record<string, string | number>>;
  readonly failed: boolean;
}

export class TraceCollector {
  readonly spans: CollectedSpan[] = [];
  /** Everything that came, headers too. */
  received = '';
  requests = 0;
  readonly #server = createServer();

  /** `status`: of its answers; null: it never answers. */
  static async start(status: number | null = 200): Promise<TraceCollector> {
    const collector = new TraceCollector();
    collector.#server.on('request', async (request, response) => {
      collector.requests += 1;
      const chunks: Buffer[] = [];
      for await (const chunk of request) chunks.push(chunk as Buffer);
      const body = Buffer.concat(chunks);
      collector.received += JSON.stringify(request.headers) + body.toString('latin1');
      collector.spans.push(...spansIn(body));
      if (status !== null) response.writeHead(status).end();
    });
    await new Promise<void>((resolve) => collector.#server.listen(0, '127.0.0.1', resolve));
    return collector;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** The spans of a trace by their names, in the order of their ends. */
  trace(trace_id: string): CollectedSpan[] {
    return this.spans.filter((span) => span.trace_id === trace_id);
  }

  /** The names from the beginning of the trace to `span`. */
  pathTo(span: CollectedSpan): string[] {
    const parent = this.spans.find(({ span_id }) => span_id === span.parent_id);
    return [...(parent ? this.pathTo(parent) : []), span.name];
  }
}

/** Of an ExportTraceServiceRequest (opentelemetry-proto). */
function spansIn(body: Buffer): CollectedSpan[] {
  return new ProtobufReader(body).messages(1).flatMap((resource_spans) => {
    const service = attributesIn(resource_spans.messages(1)[0])['service.name'];
    const spans = resource_spans.messages(2).flatMap((scope_spans) => scope_spans.messages(2));
    return spans.map((span) => ({
      service: String(service),
      name: span.text(5),
      trace_id: span.bytes(1).toString('hex'),
      span_id: span.bytes(2).toString('hex'),
      parent_id: span.bytes(4).toString('hex') || null,
      attributes: attributesIn(span, 9),
      failed: span.messages(15).some((status) => status.number(3) === 2),
    }));
  });
}

function attributesIn(message: ProtobufReader | undefined, field = 1): Record<string, string | number> {
  const pairs = (message?.messages(field) ?? []).map((pair) => {
    const [value] = pair.messages(2);
    return [pair.text(1), value?.text(1) || (value?.number(3) ?? 0)] as const;
  });
  return Object.fromEntries(pairs);
}
