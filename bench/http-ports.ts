/**
 * Measures the proxy of HTTP ports, compared with nginx as reverse proxy in front of the same port:
 *
 * - requests a second and their times at 1, 64 and 1,024 connections (h2load);
 * - 1 GiB down and up (curl);
 * - the proxy's memory over further rounds.
 *
 * The program at the port is another nginx and not a guest: an emulated guest would be slower than either proxy, and
 * would hide the difference. Each side has one process.
 */
import { execFile, spawn } from 'node:child_process';
import { mkdir, readFile, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { freeLoopbackPort } from '../src/host/qemu/qemu-process.ts';
import { present } from '../src/shared/assert.ts';
import { type ProxyMemory, startLineProgram, startProxy } from '../test/support/line-program.ts';
import { type HostBench, type HostContext, type Measured, measured, quantile } from './figure.ts';

const run = promisify(execFile);
const NAME = 'bench.localhost';
const GIB = 2 ** 30;
const SECONDS = 3;
/** Reads bodies and forgets them. */
const SINK = `process.stdin.resume().once('end', () => process.exit());
  const sink = require('node:http').createServer((q, r) => q.resume().on('end', () => r.end()));
  sink.listen(0, '127.0.0.1', () => console.log(sink.address().port));`;
const CONNECTIONS = [1, 64, 1_024] as const;

interface Sides {
  readonly berth: string;
  readonly nginx: string;
  /** Of our proxy. */
  readonly memory: () => Promise<ProxyMemory>;
}

export const httpPortsBench: HostBench = {
  alone: true,
  name: 'http-ports',
  summary: 'requests and bytes through the proxy of HTTP ports, beside nginx',
  run: measure,
};

async function measure(context: HostContext): Promise<readonly Measured[]> {
  const { scratch_dir, runs, say } = context;
  const folder = join(scratch_dir, 'http-ports');
  await mkdir(join(folder, 'www'), { recursive: true });
  await writeFile(join(folder, 'www', 'small'), 'x'.repeat(1_024));
  await writeFile(join(folder, 'www', 'big'), '');
  await truncate(join(folder, 'www', 'big'), GIB);
  const stop: (() => void)[] = [];
  try {
    const sides = await startSides(folder, stop);
    const all: Measured[] = [];
    for (const connections of CONNECTIONS) {
      const [ours, theirs] = await inTurn(runs, sides, (origin) => requests(origin, connections, folder));
      say(`${connections} connections: our proxy has ${(await sides.memory()).resident} MiB`);
      const values = (key: keyof Requests) =>
        [ours.map((each) => each[key]), theirs.map((each) => each[key])] as const;
      for (const [key, unit] of [
        ['per_second', '1/s'],
        ['p50_ms', 'ms'],
        ['p99_ms', 'ms'],
      ] as const) {
        const [mine, others] = values(key);
        all.push(
          figure(`${key === 'per_second' ? 'requests' : key.slice(0, 3)}_${connections}`, unit, mine, others),
        );
      }
    }
    for (const [way, transfer] of [
      ['down', download],
      ['up', upload],
    ] as const) {
      const [ours, theirs] = await inTurn(Math.min(runs, 3), sides, (origin) => transfer(origin, folder));
      all.push(figure(`${way}_1_gib`, 'MiB/s', ours, theirs));
    }
    return [...all, ...(await memoryOverRounds(context, sides, folder))];
  } finally {
    for (const each of stop.reverse()) each();
  }
}

/** Whether memory is flat: the same number of rounds twice. */
async function memoryOverRounds(
  { runs, say }: HostContext,
  { berth, memory }: Sides,
  folder: string,
): Promise<readonly Measured[]> {
  const found: ProxyMemory[] = [];
  for (let at = 0; at < 2 * runs; at++) {
    await requests(berth, 64, folder);
    const now = await memory();
    found.push(now);
    say(`round ${at + 1} of ${2 * runs}: our proxy has ${now.resident} MiB, ${now.live} of them live heap`);
  }
  return (['resident', 'live'] as const).map((key) => {
    const values = found.map((each) => each[key]);
    return measured({
      ...{ bench: 'http-ports', figure: `memory_${key}`, unit: 'MiB', remark: '' },
      ...{ values: values.slice(runs), beside: 'the rounds before', beside_values: values.slice(0, runs) },
    });
  });
}

function figure(
  name: string,
  unit: string,
  values: readonly number[],
  beside_values: readonly number[],
): Measured {
  return measured({
    bench: 'http-ports',
    figure: name,
    unit,
    values,
    beside: 'nginx',
    beside_values,
    remark: '',
  });
}

/** One round of each side is discarded. */
async function inTurn<T>(
  runs: number,
  { berth, nginx }: Sides,
  once_: (origin: string) => Promise<T>,
): Promise<[T[], T[]]> {
  const [ours, theirs]: [T[], T[]] = [[], []];
  for (let at = 0; at <= runs; at++) {
    const [mine, others] = [await once_(berth), await once_(nginx)];
    if (at === 0) continue;
    ours.push(mine);
    theirs.push(others);
  }
  return [ours, theirs];
}

async function startSides(folder: string, stop: (() => void)[]): Promise<Sides> {
  const [guest, front] = [await freeLoopbackPort(), await freeLoopbackPort()];
  const { first: sink, end } = await startLineProgram(['-e', SINK]);
  stop.push(end);
  await startNginx(
    folder,
    'guest',
    stop,
    `
    server { listen 127.0.0.1:${guest} backlog=2048; root ${folder}/www; keepalive_requests 1000000;
      location = /upload { client_max_body_size 0; proxy_request_buffering off; proxy_http_version 1.1;
        proxy_pass http://127.0.0.1:${sink}; } }`,
  );
  await startNginx(
    folder,
    'front',
    stop,
    `
    upstream guest { server 127.0.0.1:${guest}; keepalive 1024; }
    server { listen 127.0.0.1:${front} backlog=2048; client_max_body_size 0; keepalive_requests 1000000;
      proxy_buffering off; proxy_request_buffering off;
      location / { proxy_pass http://guest; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $http_host; } }`,
  );
  const proxy = await startProxy(`127.0.0.1:${guest}`);
  stop.push(proxy.end);
  return {
    berth: `http://${NAME}:${proxy.port}`,
    nginx: `http://${NAME}:${front}`,
    memory: proxy.memory,
  };
}

async function startNginx(
  folder: string,
  name: string,
  stop: (() => void)[],
  servers: string,
): Promise<void> {
  const temp = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (kind) => `${kind}_temp_path ${folder}/${name}-${kind};`,
  );
  const file = join(folder, `${name}.conf`);
  await writeFile(
    file,
    `worker_processes 1; daemon off; pid ${folder}/${name}.pid; error_log ${folder}/${name}.log; user root;
     events { worker_connections 8192; } http { access_log off; sendfile on; ${temp.join(' ')} ${servers} }\n`,
  );
  const nginx = spawn('nginx', ['-c', file, '-e', join(folder, `${name}.log`)], { stdio: 'inherit' });
  stop.push(() => nginx.kill('SIGTERM'));
  await run('curl', [
    '-s',
    '-o',
    '/dev/null',
    '--retry',
    '30',
    '--retry-connrefused',
    '--retry-delay',
    '0',
    present(/127\.0\.0\.1:\d+ backlog/.exec(servers)?.[0].split(' ')[0], 'address'),
  ]);
}

interface Requests {
  readonly per_second: number;
  readonly p50_ms: number;
  readonly p99_ms: number;
}

async function requests(origin: string, connections: number, folder: string): Promise<Requests> {
  const log = join(folder, 'h2load.log');
  await writeFile(log, '');
  const { stdout } = await run('h2load', [
    ...['--h1', '-c', String(connections), '-m', '1', '-t', '1', '-D', String(SECONDS), '--warm-up-time=1'],
    ...[`--connect-to=127.0.0.1:${new URL(origin).port}`, `--log-file=${log}`, `${origin}/small`],
  ]);
  const per_second = Number(/finished in [^,]+, ([0-9.]+) req\/s/.exec(stdout)?.[1]);
  if (!(per_second > 0) || !/ 0 failed, 0 errored, 0 timeout/.test(stdout)) throw new Error(stdout);
  const lines = (await readFile(log, 'utf8'))
    .trim()
    .split('\n')
    .map((line) => line.split('\t'));
  const times_ms = lines.filter(([, status]) => status === '200').map(([, , us]) => Number(us) / 1_000);
  return { per_second, p50_ms: quantile(times_ms, 0.5), p99_ms: quantile(times_ms, 0.99) };
}

async function download(origin: string): Promise<number> {
  return rate(origin, ['-o', '/dev/null', `${origin}/big`], 'speed_download');
}

async function upload(origin: string, folder: string): Promise<number> {
  return rate(
    origin,
    ['-T', join(folder, 'www', 'big'), '-o', '/dev/null', '-X', 'POST', `${origin}/upload`],
    'speed_upload',
  );
}

async function rate(origin: string, args: readonly string[], variable: string): Promise<number> {
  const { port } = new URL(origin);
  const { stdout } = await run('curl', [
    ...['-sS', '--fail', '--resolve', `${NAME}:${port}:127.0.0.1`, '-H', 'Expect:', '-w', `%{${variable}}`],
    ...args,
  ]);
  return Number(stdout) / 2 ** 20;
}
