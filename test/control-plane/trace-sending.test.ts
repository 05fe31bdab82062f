/** Spans reach a collector, and a collector that hangs, fails or is gone costs nothing but spans. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { TracesConfig } from '../../src/config/settings.ts';
import { sendTraces } from '../../src/launcher/send-traces.ts';
import { inWork, traced } from '../../src/shared/tracing.ts';
import { logLines } from '../support/log-lines.ts';
import { TraceCollector } from '../support/trace-collector.ts';
import { until } from '../support/waiting.ts';

const ALL: TracesConfig = { sampler: 'parentbased_always_on', ratio: 1 };
/** More than wait at most. */
const MANY = 10_000;

async function sendingTo(
  t: TestContext,
  status: number | null,
  env: Record<string, string> = {},
  traces = ALL,
) {
  const collector = await TraceCollector.start(status);
  const settings = { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, ...env };
  Object.assign(process.env, settings);
  const { log, lines } = logLines();
  const sending = sendTraces({ role: 'agent', traces, log, delay_ms: 10 });
  t.after(async () => {
    for (const name of Object.keys(settings)) delete process.env[name];
    await collector.close();
    await sending.close();
  });
  const lost = () => lines.filter((line) => line.includes('traces are lost'));
  return { collector, sending, lost };
}

const work = (name: string, traceparent?: string) =>
  inWork({ name, context: traceparent === undefined ? null : { traceparent } }, () =>
    traced('part', { bytes: 5 }, async () => undefined),
  );

test('spans arrive with their parents, the attributes of the process and the headers of the settings', async (t) => {
  const { collector, sending } = await sendingTo(t, 200, {
    OTEL_EXPORTER_OTLP_HEADERS: 'x-scope=berth%20one',
    OTEL_RESOURCE_ATTRIBUTES: 'service.name=machines',
  });
  const [trace, caller] = ['c'.repeat(32), '1'.repeat(16)];
  await work('whole', `00-${trace}-${caller}-01`);
  await sending.close();
  const [part, whole] = collector.spans;
  assert.deepEqual([part?.name, whole?.name, whole?.parent_id], ['part', 'whole', caller]);
  assert.equal(part?.parent_id, whole?.span_id);
  assert.deepEqual([part?.trace_id, whole?.trace_id], [trace, trace]);
  assert.deepEqual([part?.service, part?.attributes], ['machines', { bytes: 5 }]);
  assert.match(collector.received, /"x-scope":"berth one"/);
});

test('a trace that its caller does not want is not sent, unless the sampler decides alone', async (t) => {
  const unwanted = `00-${'c'.repeat(32)}-${'1'.repeat(16)}-00`;
  const follows = await sendingTo(t, 200);
  await work('unwanted', unwanted);
  await work('wanted');
  await follows.sending.close();
  const names = ({ spans }: TraceCollector) => spans.map(({ name }) => name);
  assert.deepEqual(names(follows.collector), ['part', 'wanted']);
  const alone = await sendingTo(t, 200, {}, { sampler: 'always_on', ratio: 1 });
  await work('unwanted', unwanted);
  await alone.sending.close();
  assert.deepEqual(names(alone.collector), ['part', 'unwanted']);
});

test('while a collector hangs, work goes on, spans beyond a bound are dropped, and the end does not wait for it', async (t) => {
  const { collector, sending, lost } = await sendingTo(t, null, { OTEL_EXPORTER_OTLP_TIMEOUT: '600000' });
  await work('first');
  await until('it hangs', () => collector.requests === 1);
  for (let i = 0; i < MANY; i++) await work('more');
  let closed = false;
  void sending.close().then(() => {
    closed = true;
  });
  // Its answer would take ten minutes.
  await until('it is closed', () => closed, { timeout_ms: 60_000 });
  assert(collector.spans.length < MANY, `${collector.spans.length} spans were kept`);
  assert(lost().length <= 1);
});

test('a collector that refuses everything is one line of the log', async (t) => {
  const { collector, lost } = await sendingTo(t, 400);
  for (let requests = 0; requests < 3; requests++) {
    await work('lost');
    await until('it is refused', () => collector.requests > requests);
  }
  await until('the log says so', () => lost().length > 0);
  assert.equal(lost().length, 1);
  assert.match(lost()[0] ?? '', /"reason":"Bad Request"/);
});
