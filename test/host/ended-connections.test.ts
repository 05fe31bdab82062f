/** What the kernel knows of a guest's connections, once its VM has ended. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { GUEST, guestAddress } from '../../src/host/network/addresses.ts';
import {
  inNetwork,
  mendForwarding,
  openGuestNetwork,
  removeGuestNetwork,
} from '../../src/host/network/guest-network.ts';
import { applyHostRules, dataFolderId, removeHostRules } from '../../src/host/network/packet-rules.ts';
import { runTool } from '../../src/host/network/run-tool.ts';
import { PROTOCOL, syn } from '../support/frames.ts';
import { NO_TAP } from '../support/no-tap.ts';
import { OUTSIDE, Outside } from '../support/outside.ts';
import { TapGuest } from '../support/tap-guest.ts';
import { until } from '../support/waiting.ts';

const data_dir = `/nowhere/ended-${process.pid}`;
const PORT = 64_000 + (process.pid % 1_000);

test('connections of a VM that has ended do not count against the next one at its address', {
  skip: NO_TAP,
}, async (t) => {
  t.after(() => removeGuestNetwork(data_dir));
  t.after(() => removeHostRules(dataFolderId(data_dir)));
  const { network, problem } = await openGuestNetwork(data_dir, 'auto');
  assert.ok(network, problem ?? '');
  const { chains } = await mendForwarding(network);
  await applyHostRules({ data_folder_id: dataFolderId(data_dir), chains });
  await using _outside = await Outside.open();
  const guest = await TapGuest.start(network, PORT);
  t.after(() => guest.end());
  guest.send({ to: OUTSIDE, protocol: PROTOCOL.tcp, payload: syn(GUEST, OUTSIDE, [20_003, 7_003]) });
  await until('the outside answers', () => guest.packets().some(({ from }) => from === OUTSIDE));
  const list = ['-L', '-s', guestAddress(PORT)];
  const known = async () =>
    (await runTool('conntrack', list)) + (await inNetwork(network, ['conntrack', ...list]));
  assert.equal((await known()).match(/ dport=7003 /g)?.length, 2, 'in both networks');
  const gone = once(guest.process, 'exit');
  guest.end();
  await gone;
  assert.equal((await mendForwarding(network)).problem, null);
  assert.equal(await known(), '');
});
