/** The program that reads the kernel's log of refused packets. Needs root. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { NO_TAP } from '../support/no-tap.ts';
import { until } from '../support/waiting.ts';

const PACKET_LOG = join(import.meta.dirname, '../../src/host/egress/packet-log.ts');
/** A log that nothing writes to. */
const GROUP = 40_000 + (process.pid % 20_000);

/** The processes that read the log, by their command lines. */
const readers = () =>
  readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid)) return false;
    try {
      const words = readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0');
      return words[0] === 'tcpdump' && words.includes(`nflog:${GROUP}`);
    } catch {
      return false;
    }
  });

/** What the packaged service may have, as setpriv(1) takes it. */
function serviceCapabilities(): string {
  const unit = readFileSync(join(import.meta.dirname, '../../packaging/debian/berth.service'), 'utf8');
  const named = [...unit.matchAll(/^CapabilityBoundingSet=(.*)$/gm)].flatMap(([, line = '']) =>
    line.split(' '),
  );
  return ['-all', ...named.map((name) => `+${name.replace('CAP_', '').toLowerCase()}`)].join(',');
}

test('the reader of the log runs without root, within the service’s capabilities, and ends with a killed agent', {
  skip: NO_TAP,
}, async () => {
  const script = `import(${JSON.stringify(PACKET_LOG)}).then(({ runPacketLog }) => runPacketLog(
    { namespace: null, group: ${GROUP}, log: console, takeDenial: () => undefined }, new AbortController().signal))`;
  const confined = [`--bounding-set=${serviceCapabilities()}`, '--no-new-privs', '--', process.execPath];
  const agent = spawn('setpriv', [...confined, '-e', script], { stdio: 'ignore' });
  try {
    await until('the log is read', () => readers().length === 1);
    const status = readFileSync(`/proc/${readers()[0]}/status`, 'latin1');
    assert.match(status, /^Uid:\t65534\t65534\t65534\t65534$/m);
  } finally {
    agent.kill('SIGKILL');
  }
  await until('the reader has ended', () => readers().length === 0);
});
