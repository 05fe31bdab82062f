import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import fc from 'fast-check';
import { KEY_TYPES, parsePublicKey } from './public-key.ts';

const folder = mkdtempSync(join(tmpdir(), 'berth-keys-'));
after(() => rmSync(folder, { recursive: true, force: true }));

let files = 0;
function file(): string {
  files += 1;
  return join(folder, `key${files}`);
}

/** Makes a key pair; the public line as ssh-keygen wrote it. */
function generate(...args: string[]): string {
  const path = file();
  execFileSync('ssh-keygen', ['-q', '-N', '', '-C', 'me@laptop', '-f', path, ...args]);
  return readFileSync(`${path}.pub`, 'utf8');
}

/** The bits and fingerprint of a line, by ssh-keygen. */
function oracle(line: string): { bits: number; fingerprint: string } {
  const path = file();
  writeFileSync(path, `${line}\n`);
  const [bits, fingerprint] = execFileSync('ssh-keygen', ['-l', '-f', path], { encoding: 'utf8' }).split(' ');
  return { bits: Number(bits), fingerprint: fingerprint ?? '' };
}

function field(bytes: Buffer | string): Buffer {
  const body = Buffer.from(bytes);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(body.length);
  return Buffer.concat([length, body]);
}
function blobOf(line: string): Buffer {
  return Buffer.from(line.split(' ')[1] ?? '', 'base64');
}
function lineOf(type: string, ...fields: (Buffer | string)[]): string {
  return `${type} ${Buffer.concat([field(type), ...fields.map(field)]).toString('base64')}`;
}

/** The fields of a blob after its type. */
function fieldsOf(blob: Buffer): Buffer[] {
  const fields: Buffer[] = [];
  for (let at = 0; at < blob.length; ) {
    const length = blob.readUInt32BE(at);
    fields.push(blob.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return fields.slice(1);
}

const ED25519 = generate('-t', 'ed25519');
const ECDSA = generate('-t', 'ecdsa', '-b', '256');
const RSA = generate('-t', 'rsa', '-b', '2048');
const [ED_KEY = Buffer.alloc(0)] = fieldsOf(blobOf(ED25519));
const [, EC_POINT = Buffer.alloc(0)] = fieldsOf(blobOf(ECDSA));
const [RSA_E = Buffer.alloc(0), RSA_N = Buffer.alloc(0)] = fieldsOf(blobOf(RSA));

const GOOD: Record<string, string> = {
  ed25519: ED25519,
  'ecdsa 256': ECDSA,
  'ecdsa 384': generate('-t', 'ecdsa', '-b', '384'),
  'ecdsa 521': generate('-t', 'ecdsa', '-b', '521'),
  'rsa 2048': RSA,
  'rsa 4096': generate('-t', 'rsa', '-b', '4096'),
  'sk-ed25519': `${lineOf('sk-ssh-ed25519@openssh.com', ED_KEY, 'ssh:')} token\n`,
  'sk-ecdsa': `${lineOf('sk-ecdsa-sha2-nistp256@openssh.com', 'nistp256', EC_POINT, 'ssh:mine')} token\n`,
};

describe('a key is accepted, with the fingerprint that ssh-keygen prints', () => {
  for (const [what, line] of Object.entries(GOOD)) {
    test(what, () => {
      const key = parsePublicKey(line);
      assert.equal(key.fingerprint, oracle(line).fingerprint);
      const [type, base64, comment] = line.trim().split(' ');
      assert.deepEqual([key.type, key.line, key.comment], [type, `${type} ${base64}`, comment]);
      assert.deepEqual(parsePublicKey(key.line).fingerprint, key.fingerprint, 'without comment, too');
    });
  }
  test('of every type that is accepted', () => {
    const types = new Set(Object.values(GOOD).map((line) => line.split(' ')[0]));
    assert.deepEqual([...types].sort(), [...KEY_TYPES].sort());
  });
  test('whose comment has several words, and whose line ends as on Windows', () => {
    assert.equal(parsePublicKey(`${ED25519.trim()} at home\r\n`).comment, 'me@laptop at home');
  });
});

describe('a key is refused', () => {
  const refused = (what: string, line: () => string, why: RegExp) =>
    test(what, () => {
      assert.throws(() => parsePublicKey(line()), { code: 'INVALID_REQUEST', message: why });
    });
  const bare = ED25519.split(' ').slice(0, 2).join(' ');

  refused('that is nothing', () => '', /no accepted key type/);
  refused('that is a type alone', () => 'ssh-ed25519', /base64/);
  refused('that is private', () => readFileSync(join(folder, 'key1'), 'utf8'), /private key/);
  refused(
    'that is a certificate',
    () => {
      const [ca, user] = [file(), file()];
      for (const path of [ca, user]) {
        execFileSync('ssh-keygen', ['-q', '-N', '', '-t', 'ed25519', '-f', path]);
      }
      execFileSync('ssh-keygen', ['-q', '-s', ca, '-I', 'id', '-n', 'root', `${user}.pub`]);
      return readFileSync(`${user}-cert.pub`, 'utf8');
    },
    /certificates are not accepted/,
  );
  refused('of type dsa', () => lineOf('ssh-dss', RSA_N, RSA_E, RSA_E, RSA_N), /no accepted key type/);
  for (const type of ['constructor', 'toString', 'valueOf', 'hasOwnProperty', '__proto__']) {
    refused(`of type ${type}, which every object has`, () => lineOf(type), /no accepted key type/);
  }
  refused('with options', () => `no-pty,command="sh" ${bare}`, /options/);
  refused('with an option that looks harmless', () => `restrict ${bare}`, /options/);
  refused('on several lines', () => `${bare}\n${bare}`, /one line/);
  refused('after an empty line', () => `\n${bare}`, /one line/);
  refused('with a carriage return inside', () => `${bare}\r${bare}`, /one line/);
  refused('with NUL', () => `${bare}\0`, /one line/);
  refused(
    'with bytes after it',
    () => `ssh-ed25519 ${Buffer.concat([blobOf(bare), Buffer.alloc(1)]).toString('base64')}`,
    /bytes after the key/,
  );
  refused(
    'that is cut short',
    () => `ssh-ed25519 ${blobOf(bare).subarray(0, -1).toString('base64')}`,
    /cut short/,
  );
  refused('whose inside is of another type', () => `ssh-rsa ${bare.split(' ')[1]}`, /another type/);
  refused('that is no base64', () => `${bare.slice(0, -8)}!!!!!!!!`, /base64/);
  refused('with base64 for URLs', () => `ssh-ed25519 ${'AAAA-_'.repeat(10)}`, /base64/);
  refused('of ed25519 with 31 bytes', () => lineOf('ssh-ed25519', ED_KEY.subarray(1)), /32 bytes/);
  refused(
    'on a curve other than its type says',
    () => lineOf('ecdsa-sha2-nistp256', 'nistp384', EC_POINT),
    /curve/,
  );
  refused(
    'with a compressed point',
    () =>
      lineOf('ecdsa-sha2-nistp256', 'nistp256', Buffer.concat([Buffer.from([2]), EC_POINT.subarray(1, 33)])),
    /point/,
  );
  refused('of rsa with 1024 bits', () => generate('-t', 'rsa', '-b', '1024'), /1024|2048 bits/);
  refused(
    'of rsa with 2047 bits',
    () => {
      const short = Buffer.from(RSA_N.subarray(1));
      short[0] = 0x7f;
      const line = lineOf('ssh-rsa', RSA_E, short);
      assert.equal(oracle(line).bits, 2047);
      return line;
    },
    /2047/,
  );
  refused('of rsa with a negative modulus', () => lineOf('ssh-rsa', RSA_E, RSA_N.subarray(1)), /positive/);
  refused(
    'of rsa with a modulus that is not in its shortest form',
    () => lineOf('ssh-rsa', RSA_E, Buffer.concat([Buffer.alloc(300), RSA_N])),
    /shortest form/,
  );
  refused('of rsa with an empty modulus', () => lineOf('ssh-rsa', RSA_E, ''), /positive/);
  refused(
    'of a security key for the web',
    () => lineOf('sk-ssh-ed25519@openssh.com', ED_KEY, 'https://x'),
    /ssh:/,
  );
  refused('that is longer than any key', () => `${bare} ${'x'.repeat(20_000)}`, /characters/);
});

test('any text is accepted or refused without another error, and ssh-keygen reads every accepted one', () => {
  const lines = Object.values(GOOD);
  const mutated = fc
    .tuple(fc.constantFrom(...lines), fc.nat(400), fc.string({ minLength: 0, maxLength: 3 }))
    .map(([line, at, text]) => line.slice(0, at) + text + line.slice(at + text.length));
  fc.assert(
    fc.property(fc.oneof(mutated, fc.string()), (text) => {
      try {
        const key = parsePublicKey(text);
        assert.match(key.line, /^[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}$/);
      } catch (error) {
        assert.equal((error as { code?: string }).code, 'INVALID_REQUEST', String(error));
      }
    }),
    { numRuns: 500 },
  );
});
