/** No unused files, no unused exports, and no exported name with two meanings. All are looked for by name, in the text of files. */
import assert from 'node:assert/strict';
import { basename } from 'node:path';
import { test } from 'node:test';
import { filesBelow, importsOf, isTest, read } from './imports.ts';

const code = [
  'src',
  'test',
  'bench',
  'bin',
  'client',
  'console',
  'site',
  'adapters',
  'guest',
  'packaging',
].flatMap((folder) => filesBelow(folder, ['.ts', '.tsx', '.mjs', '.py', '.pl', '.css']));
const texts = new Map(
  [
    ...code,
    ...['bin', 'guest', 'packaging', 'docs', 'bench'].flatMap((folder) =>
      filesBelow(folder, ['.sh', '.md', '.service']),
    ),
    ...['package.json', 'README.md', 'CONTRIBUTING.md', 'ARCHITECTURE.md', 'Dockerfile'],
  ].map((path) => [path, read(path)]),
);
const sources = code.filter((path) => /\.tsx?$/.test(path) && path !== 'client/src/generated.ts');

test('every file is imported, started or named somewhere', () => {
  const imported = new Set(sources.flatMap((path) => importsOf(path).map(({ to }) => to)));
  const isNamed = (path: string) => {
    const name = basename(path).replace(/\.[cm]?tsx?$/, '');
    // As `bin/run-tests.ts` in a script, and as `'write-openapi'` where the ending depends on the build.
    const named = new RegExp(`[/'"\`]${name}(\\.\\w+)?\\b`);
    return [...texts].some(([other, text]) => other !== path && named.test(text));
  };
  assert.deepEqual(
    code.filter((path) => !isTest(path) && !imported.has(path) && !isNamed(path)),
    [],
  );
});

test('every export is used: a value in another file, a type at least in its own', () => {
  const EXPORT = /^export (?:abstract |async )*(const|let|function\*?|class|interface|type) (\w+)/gm;
  const uses = new Map<string, number>();
  const files = new Map<string, number>();
  const count = (counts: typeof uses, words: Iterable<string>) => {
    for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  };
  for (const text of texts.values()) {
    const words = text.match(/\w+/g) ?? [];
    count(uses, words);
    count(files, new Set(words));
  }
  const unused = sources.flatMap((path) =>
    [...read(path).matchAll(EXPORT)].flatMap(([, kind = '', name = '']) => {
      const is_type = kind === 'interface' || kind === 'type';
      return (is_type ? uses : files).get(name) === 1 ? [`${path}: ${name}`] : [];
    }),
  );
  assert.deepEqual(unused, []);
});

/**
 * Names that two files export for one thing: the schema that the API shows and the one that a host sends, a schema and the type
 * that it describes, or copies in programs that must not import each other. Only ever fewer.
 */
const ONE_THING_TWICE: readonly string[] = [
  // The kits of schemas: of the API, and of the protocol.
  ...['closed', 'idOf', 'named', 'nullable', 'oneOf', 'Fingerprint', 'Time'],
  // A schema, and its type.
  ...[
    'Consistency',
    'Egress',
    'ExecId',
    'FlushId',
    'HostId',
    'HttpPortId',
    'InstanceId',
    'PublicKey',
    'Scope',
  ],
  ...['SshAddress', 'TraceContext', 'VmId', 'VmReason'],
  // What the protocol carries, and the library that uses it without knowing the protocol.
  ...['DataKey', 'MapRef', 'ObjectRequest', 'SegmentRef', 'SignedRequest', 'ByteRange'],
  // Programs that do not import each other.
  ...['ACCELERATORS', 'Accelerator', 'EVENT_TYPES', 'HttpEndpoint', 'INSTANCE', 'ROLES'],
];

test('no exported name means two things', () => {
  const DECLARED = /^export (?:abstract |async )*(?:type|interface|const|function\*?|class) (\w+)/gm;
  const files = new Map<string, Set<string>>();
  for (const path of sources.filter((each) => each.startsWith('src/') && !isTest(each))) {
    for (const [, name = ''] of read(path).matchAll(DECLARED))
      files.set(name, (files.get(name) ?? new Set()).add(path));
  }
  const twice = [...files].filter(([, paths]) => paths.size > 1).map(([name]) => name);
  assert.deepEqual(twice.sort(), [...ONE_THING_TWICE].sort());
});
