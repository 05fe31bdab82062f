/**
 * A revoked key's live connections end, those of another key stay: with two people's keys, real ssh and every kind of
 * connection, then with a guest that hides connections or does not answer.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { present } from '../../src/shared/assert.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import { ownPort } from '../support/own-ports.ts';
import { type RunningSsh, runProgram, SshClient } from '../support/ssh-client.ts';
import { until } from '../support/waiting.ts';

/** From the answer to the revocation: what is promised. */
const WITHIN = { timeout_ms: 5_000 };
/** Where the ingress cuts after 4 s, because the guest does not confirm: a busy machine takes longer than the rest of 5. */
const WITHIN_OF_INGRESS = { timeout_ms: 15_000 };

/** SSH_FXP_INIT of version 3 (draft-ietf-secsh-filexfer-02, section 4). */
const SFTP_INIT = '\0\0\0\x05\x01\0\0\0\x03';

type Kind = 'shell' | 'exec' | 'forwarding' | 'master' | 'sftp';
const EVERY_KIND: readonly Kind[] = ['shell', 'exec', 'forwarding', 'master', 'sftp'];
/** Where it is not the kinds that matter. */
const SOME_KINDS: readonly Kind[] = ['exec', 'master'];

interface Kept {
  readonly client: SshClient;
  readonly id: string;
  readonly kinds: Readonly<Partial<Record<Kind, RunningSsh>>>;
  readonly control: string;
}

describe('revoking a key', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let names = 0;

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'revoked');
  });
  after(() => berth?.dispose());

  /** A new key on the account, which gets in at once. */
  const newKey = async () => {
    names += 1;
    const client = new SshClient(berth.data_dir, `key-${names}`);
    client.know(guest.target.known_hosts);
    const body = { name: `key-${names}`, public_key: client.public_key };
    const { id } = await berth.client.expect<{ id: string }>(201, 'POST', '/v1/me/ssh-keys', body);
    await client.output(guest.target, 'true');
    return { client, id };
  };
  const revoke = (id: string) => berth.client.expect(204, 'DELETE', `/v1/me/ssh-keys/${id}`);
  const says = async (ssh: RunningSsh, text: string) => {
    ssh.send(`echo ${text}-$((40+2))\n`);
    await until(`${text} is answered`, () => ssh.printed().includes(`${text}-42`));
  };

  const begin = {
    shell: (client: SshClient) => client.start(guest.target, { flags: ['-tt'] }),
    exec: (client: SshClient) => client.start(guest.target, { command: 'sh' }),
    forwarding: async (client: SshClient) =>
      client.start(guest.target, {
        flags: ['-N', '-L', `127.0.0.1:${await ownPort()}:127.0.0.1:22`, '-v'],
      }),
    master: (client: SshClient, options: string[]) =>
      client.start(guest.target, { flags: ['-N', '-M', '-v'], options }),
    // The subsystem alone: the program sftp notices its connection's end only when it is told something.
    sftp: (client: SshClient) => client.start(guest.target, { flags: ['-s'], command: 'sftp' }),
  } as const satisfies Record<Kind, unknown>;
  const isUp = async (kind: Kind, ssh: RunningSsh) => {
    if (kind === 'shell' || kind === 'exec') return says(ssh, kind);
    if (kind === 'sftp') ssh.send(SFTP_INIT);
    const greeting =
      kind === 'sftp' ? /posix-rename@openssh\.com/ : /Entering interactive session|Entering mux/;
    await until(`${kind} is up`, () => greeting.test(ssh.printed()));
  };

  /** A connection of each of these kinds, each known to be up, and a command over the multiplexed one. */
  const connectAll = async (
    { client, id }: { client: SshClient; id: string },
    wanted: readonly Kind[] = SOME_KINDS,
  ): Promise<Kept> => {
    const control = join(berth.data_dir, `control-${id.slice(-8)}`);
    const multiplexed = [`ControlPath=${control}`];
    const kinds: Partial<Record<Kind, RunningSsh>> = {};
    for (const kind of wanted) kinds[kind] = await begin[kind](client, multiplexed);
    for (const kind of wanted) await isUp(kind, present(kinds[kind], kind));
    const over = await client.run(guest.target, 'echo multiplexed', { options: multiplexed });
    assert.equal(over.stdout, 'multiplexed\n', over.stderr);
    return { client, id, kinds, control };
  };
  const stillThere = async (kept: Kept) => {
    for (const [kind, ssh] of Object.entries(kept.kinds)) assert(ssh.running(), `${kind}: ${ssh.printed()}`);
    await says(present(kept.kinds.shell, 'shell'), `still${names}`);
    await says(present(kept.kinds.exec, 'exec'), `still${names}`);
    const options = [`ControlPath=${kept.control}`];
    assert.equal((await kept.client.run(guest.target, 'echo on', { options })).stdout, 'on\n');
  };
  const allEnd = async (kept: Kept, within = WITHIN) => {
    const open = () => Object.entries(kept.kinds).filter(([, ssh]) => ssh.running());
    await until(`all of ${Object.keys(kept.kinds)} have ended`, () => open().length === 0, within);
    const checked = await runProgram('ssh', ['-o', `ControlPath=${kept.control}`, '-O', 'check', 'x']);
    assert.notEqual(checked.code, 0, 'the multiplexed connection is gone');
  };
  const isRefused = async (client: SshClient) => {
    const result = await client.run(guest.target, 'true');
    assert.equal(result.code, 255);
    assert.match(result.stderr, /Permission denied \(publickey\)/);
  };

  let staying: Kept;

  test('ends its shell, command, forwarding, multiplexed connection and sftp; connections of another key stay', async () => {
    staying = await connectAll(await newKey(), EVERY_KIND);
    const going = await connectAll(await newKey(), EVERY_KIND);
    await revoke(going.id);
    await allEnd(going);
    await isRefused(going.client);
    await stillThere(staying);
  });

  test('by removing it from the key set does the same', async () => {
    const going = await connectAll(await newKey());
    await berth.client.expect(200, 'PUT', `${guest.path}/ssh-keys`, { ssh_key_ids: [staying.id] });
    await allEnd(going);
    await isRefused(going.client);
    await stillThere(staying);
    await berth.client.expect(200, 'PUT', `${guest.path}/ssh-keys`, { mode: 'account' });
    await guest.shAgain('true');
  });

  test('ends connections that are older than the last rotation of the log', async () => {
    const going = await connectAll(await newKey());
    await guest.sh('yes "a line of noise" | head -c 1200000 >> /run/berth/sshd.log');
    await until(
      'the log is cut',
      async () => Number(await guest.sh('stat -c %s /run/berth/sshd.log')) < 100_000,
      { timeout_ms: 60_000, every_ms: 1_000 },
    );
    assert(Number(await guest.sh('stat -c %s /run/berth/sshd.log.1')) < 20_000, 'only what is open is kept');
    await revoke(going.id);
    await allEnd(going);
    await stillThere(staying);
  });

  test('ends connections also when the agent has just died', async () => {
    const going = await connectAll(await newKey());
    await berth.kill('agent');
    await revoke(going.id);
    await allEnd(going, WITHIN_OF_INGRESS);
    await berth.recovered('agent');
    await guest.shAgain('true');
    await isRefused(going.client);
  });

  test('closes the port when the guest does not confirm, until it does', async () => {
    const going = await connectAll(await newKey());
    const bystander = berth.ssh.start(guest.target, { command: 'sh' });
    await says(bystander, 'bystander');
    // It comes back by itself, because by then nobody gets in to wake it.
    const pause = 'kill -STOP $(pidof qemu-ga); (sleep 20; kill -CONT $(pidof qemu-ga)) > /dev/null 2>&1 &';
    await guest.sh(pause);
    await revoke(going.id);
    await allEnd(going, WITHIN_OF_INGRESS);
    await until('the connections of all others too', () => !bystander.running(), WITHIN_OF_INGRESS);
    const refused = await berth.ssh.run(guest.target, 'true');
    assert.match(refused.stderr, /Connection (closed|reset)/);
    await guest.shAgain('true');
    await isRefused(going.client);
  });

  test('by its owner, whose role may not write instances, does the same', async () => {
    const { id: me } = await berth.client.expect<{ id: string }>(200, 'GET', '/v1/me');
    const { data } = await berth.client.expect<{ data: { id: string }[] }>(200, 'GET', '/v1/orgs');
    const org_id = present(data[0], 'an organisation').id;
    const going = await connectAll(await newKey());
    // Somebody who stays the owner.
    await berth.sql(`insert into users (id, email, email_key, name, password_hash)
      values ('usr_other', 'other@example.org', 'other@example.org', 'Other', '-')`);
    await berth.sql(`insert into memberships (org_id, user_id, role) values ($1, 'usr_other', 'owner')`, [
      org_id,
    ]);
    await berth.client.expect(200, 'PATCH', `/v1/orgs/${org_id}/members/${me}`, { role: 'billing' });
    await allEnd(going);
    await isRefused(going.client);
    await berth.sql(`update memberships set role = 'owner' where user_id = $1`, [me]);
    await newKey();
    await guest.shAgain('true');
  });

  test('ends connections that are missing in a log that the guest emptied', async () => {
    const going = await newKey();
    const shell = going.client.start(guest.target, { command: 'sh' });
    await says(shell, 'hiding');
    await says(shell, 'hiding');
    shell.send(': > /run/berth/sshd.log; : > /run/berth/sshd.log.1; echo emptied\n');
    await until('the log is empty', () => shell.printed().includes('emptied'));
    await revoke(going.id);
    await until('it has ended all the same', () => !shell.running(), { timeout_ms: 60_000 });
  });
});
