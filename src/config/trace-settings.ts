/** The settings of traces: OpenTelemetry's standard variables. Its exporter reads most of them itself; here they are checked. Pure. */
import type { Reader } from './config.ts';
import { Expected, parseChoice, type Setting } from './settings.ts';

const SAMPLERS = [
  ...(['always_on', 'always_off', 'traceidratio'] as const),
  ...(['parentbased_always_on', 'parentbased_always_off', 'parentbased_traceidratio'] as const),
] as const;

export interface TracesConfig {
  readonly sampler: (typeof SAMPLERS)[number];
  /** Of new traces; for samplers with a ratio. */
  readonly ratio: number;
}

const ENDPOINTS = ['OTEL_EXPORTER_OTLP_ENDPOINT', 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'] as const;
/** What else the exporter reads, and silently ignores when it is malformed. */
const CHECKED: readonly (readonly [Setting, (text: string) => unknown])[] = [
  ['OTEL_EXPORTER_OTLP_HEADERS', parsePairs],
  ['OTEL_EXPORTER_OTLP_PROTOCOL', parseChoice(['http/protobuf'])],
  ['OTEL_EXPORTER_OTLP_TIMEOUT', parseMilliseconds],
  ['OTEL_EXPORTER_OTLP_COMPRESSION', parseChoice(['none', 'gzip'])],
  ['OTEL_RESOURCE_ATTRIBUTES', parsePairs],
];

/** Null: no traces. Without an endpoint the other variables, which may be meant for other programs, are not looked at. */
export function readTraces(reader: Reader): TracesConfig | null {
  const off = reader.text('OTEL_SDK_DISABLED') === 'true' || reader.text('OTEL_TRACES_EXPORTER') === 'none';
  if (off || ENDPOINTS.every((name) => reader.text(name) === null)) return null;
  for (const name of ENDPOINTS) reader.read(name, parseEndpoint, null);
  for (const [name, parse] of CHECKED) reader.read(name, parse, null);
  return {
    sampler: reader.read('OTEL_TRACES_SAMPLER', parseChoice(SAMPLERS), 'parentbased_always_on'),
    ratio: reader.read('OTEL_TRACES_SAMPLER_ARG', parseRatio, 1),
  };
}

function parseEndpoint(text: string): string {
  const url = URL.parse(text);
  if (url === null || !['http:', 'https:'].includes(url.protocol) || url.username !== '')
    throw new Expected('the URL of a collector, such as http://127.0.0.1:4318');
  return text;
}

/** As the specification has it: values are percent-encoded. */
function parsePairs(text: string): string {
  const wrong = text.split(',').some((pair) => !/^\s*[^\s=,;]+\s*=[^,;]*$/.test(pair) || !isEncoded(pair));
  if (wrong) throw new Expected('pairs such as name=value,other=value, with values percent-encoded');
  return text;
}

function isEncoded(text: string): boolean {
  try {
    decodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}

function parseMilliseconds(text: string): number {
  const ms = /^[0-9]{1,6}$/.test(text) ? Number(text) : 0;
  if (ms < 1) throw new Expected('milliseconds, from 1 to 999999');
  return ms;
}

function parseRatio(text: string): number {
  const ratio = /^[0-9]*\.?[0-9]+$/.test(text) ? Number(text) : -1;
  if (ratio < 0 || ratio > 1) throw new Expected('a ratio from 0 to 1, such as 0.1');
  return ratio;
}
