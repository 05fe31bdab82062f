/** Makes an SSH host key like `ssh-keygen -t ed25519`, which takes half a second in an emulated guest. */
import { generateKeyPairSync, randomBytes } from 'node:crypto';

const TYPE = 'ssh-ed25519';
const LINE = /.{1,70}/g;
/** The padding of an unencrypted key (PROTOCOL.key in OpenSSH's sources). */
const BLOCK_BYTES = 8;

export interface HostKeyFiles {
  readonly host_key: string;
  readonly host_key_pub: string;
}

export function makeHostKey(): HostKeyFiles {
  const { x, d } = generateKeyPairSync('ed25519').privateKey.export({ format: 'jwk' });
  const [public_half, seed] = [Buffer.from(String(x), 'base64url'), Buffer.from(String(d), 'base64url')];
  const public_blob = Buffer.concat([text(TYPE), text(public_half)]);
  const check = randomBytes(4);
  const secret = Buffer.concat([
    ...[check, check, public_blob, text(Buffer.concat([seed, public_half]))],
    text(''), // no comment
  ]);
  const padding = Buffer.from(
    Array.from({ length: (BLOCK_BYTES - (secret.length % BLOCK_BYTES)) % BLOCK_BYTES }, (_, at) => at + 1),
  );
  const all = Buffer.concat([
    ...[Buffer.from('openssh-key-v1\0'), text('none'), text('none'), text('')],
    ...[Buffer.from([0, 0, 0, 1]), text(public_blob), text(Buffer.concat([secret, padding]))],
  ]);
  const lines = all.toString('base64').match(LINE) ?? [];
  return {
    host_key: ['-----BEGIN OPENSSH PRIVATE KEY-----', ...lines, '-----END OPENSSH PRIVATE KEY-----', ''].join(
      '\n',
    ),
    host_key_pub: `${TYPE} ${public_blob.toString('base64')}\n`,
  };
}

/** RFC 4251, section 5: `string`. */
function text(value: string | Buffer): Buffer {
  const bytes = Buffer.from(value);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(bytes.length);
  return Buffer.concat([length, bytes]);
}
