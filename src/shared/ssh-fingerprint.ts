import { createHash } from 'node:crypto';

/** `SHA256:…` of a public key line `<type> <base64> …`, as `ssh-keygen -l` prints it and sshd logs it. */
export function fingerprintOf(line: string): string {
  const blob = Buffer.from(line.split(' ')[1] ?? '', 'base64');
  return `SHA256:${createHash('sha256').update(blob).digest('base64').replace(/=+$/, '')}`;
}
