import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseConfig } from './config.ts';

const ENDPOINT = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' };

function tracesOf(env: Record<string, string>) {
  const result = parseConfig(env, '/');
  assert(result.ok, result.ok ? '' : result.problems.join('\n'));
  return result.config.traces;
}

test('there are no traces without an endpoint, and what is meant for other programs is not looked at', () => {
  assert.equal(tracesOf({}), null);
  assert.equal(tracesOf({ OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc', OTEL_TRACES_SAMPLER: 'xray' }), null);
  assert.equal(tracesOf({ ...ENDPOINT, OTEL_SDK_DISABLED: 'true' }), null);
  assert.equal(tracesOf({ ...ENDPOINT, OTEL_TRACES_EXPORTER: 'none' }), null);
});

test('an endpoint switches traces on, all of them unless a sampler is set', () => {
  const all = { sampler: 'parentbased_always_on', ratio: 1 };
  assert.deepEqual(tracesOf(ENDPOINT), all);
  assert.deepEqual(tracesOf({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://t.example.org/v1/traces' }), all);
  const some = { OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '0.25' };
  assert.deepEqual(tracesOf({ ...ENDPOINT, ...some }), { sampler: 'traceidratio', ratio: 0.25 });
});

test('other variables of the standard are accepted as it has them', () => {
  tracesOf({
    ...ENDPOINT,
    OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Basic%20abc=,x-scope=berth',
    OTEL_EXPORTER_OTLP_PROTOCOL: 'http/protobuf',
    OTEL_EXPORTER_OTLP_TIMEOUT: '5000',
    OTEL_EXPORTER_OTLP_COMPRESSION: 'gzip',
    OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=staging, service.version=1.2',
    OTEL_SERVICE_NAME: 'berth',
  });
});

test('a bad one has a line, and a header is not shown', () => {
  const bad: Record<string, readonly string[]> = {
    OTEL_EXPORTER_OTLP_ENDPOINT: ['127.0.0.1:4318', 'grpc://a', 'http://user:hunter2@a'],
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: ['collector'],
    OTEL_EXPORTER_OTLP_HEADERS: ['hunter2', 'a=hunter2,', 'a=%hunter2'],
    OTEL_EXPORTER_OTLP_PROTOCOL: ['grpc', 'http/json'],
    OTEL_EXPORTER_OTLP_TIMEOUT: ['0', '5s'],
    OTEL_EXPORTER_OTLP_COMPRESSION: ['zstd'],
    OTEL_TRACES_SAMPLER: ['always'],
    OTEL_TRACES_SAMPLER_ARG: ['1.5', 'half', '-1'],
    OTEL_RESOURCE_ATTRIBUTES: ['staging'],
  };
  for (const [name, values] of Object.entries(bad))
    for (const value of values) {
      const result = parseConfig({ ...ENDPOINT, [name]: value }, '/');
      assert(!result.ok, `${name}=${value}`);
      assert.equal(result.problems.length, 1);
      assert.match(result.problems[0] ?? '', new RegExp(`^${name}: .*expected `));
      if (name.endsWith('HEADERS')) assert.doesNotMatch(result.problems[0] ?? '', /hunter2/);
    }
});
