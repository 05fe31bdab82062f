/** Creates and uses one instance of an installation and its guest as a user does: through the API and ssh. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import type { Installation } from './installation.ts';
import type { InstanceBody, ReceiptBody, SshBody, VmBody } from './rest-client.ts';
import type { SshClient } from './ssh-client.ts';
import { until, untilWorks } from './waiting.ts';

const SETTLE_MS = 300_000;
const SMALL = { memory_mib: 256, disk_gib: 2, auto_flush_seconds: null };

export class GuestInstance {
  readonly id: string;
  readonly installation: Installation;
  #ssh: SshBody | undefined;

  private constructor(installation: Installation, id: string) {
    this.installation = installation;
    this.id = id;
  }

  /** One that exists. */
  static of(installation: Installation, id: string): GuestInstance {
    return new GuestInstance(installation, id);
  }

  /** Creates a small instance, without the automatic flush by default. */
  static async create(installation: Installation, name: string, more: object = {}): Promise<GuestInstance> {
    const body = { ...SMALL, name, ...more };
    const { id } = await installation.client.expect<InstanceBody>(201, 'POST', '/v1/instances', body);
    return new GuestInstance(installation, id);
  }

  /** Like {@link create}, then starts it and trusts its host key. */
  static async running(installation: Installation, name: string, more: object = {}): Promise<GuestInstance> {
    const instance = await GuestInstance.create(installation, name, more);
    await instance.start();
    await instance.learnHost();
    // The flush after the first boot is over, so the test makes all further generations.
    await instance.becomes('durable', ({ disk }) => disk.generation > 0);
    return instance;
  }

  /** Creates an instance without starting it. */
  async fork(name: string, generation?: number): Promise<GuestInstance> {
    const body = { name, ...(generation === undefined ? {} : { generation }) };
    const { id } = await this.installation.client.expect<InstanceBody>(
      201,
      'POST',
      `${this.path}/fork`,
      body,
    );
    return new GuestInstance(this.installation, id);
  }

  /** Deletes the instance, and waits until all objects that only it held are deleted. */
  async gone(): Promise<void> {
    const look = async () => (await this.installation.client.request('GET', this.path)).status === 404;
    await until(`${this.id} is gone`, look, { timeout_ms: SETTLE_MS });
  }

  get path(): string {
    return `/v1/instances/${this.id}`;
  }
  get qemu(): ProcessIdentity {
    return this.installation.qemu(this.id);
  }

  vm(): Promise<VmBody> {
    return this.installation.client.expect<VmBody>(200, 'GET', `${this.path}/vm`);
  }

  /** Waits for the state. Fails when the VM is `failed` instead, or at the deadline. */
  async reached(state: string): Promise<VmBody> {
    const { client } = this.installation;
    const deadline = performance.now() + SETTLE_MS;
    for (;;) {
      const query = ['running', 'stopped', 'suspended'].includes(state)
        ? `?wait=${state}&timeout_seconds=60`
        : '';
      const vm = await client.expect<VmBody>(200, 'GET', `${this.path}/vm${query}`);
      if (vm.state === state) return vm;
      const tell = `the VM is ${vm.state}, not ${state}: ${JSON.stringify(vm.reason)}`;
      assert(vm.state !== 'failed' && performance.now() < deadline, tell);
    }
  }

  /** Waits until `wanted` holds for the VM, and returns the VM. */
  async becomes(what: string, wanted: (vm: VmBody) => boolean, timeout_ms = SETTLE_MS): Promise<VmBody> {
    const look = async () => {
      const vm = await this.vm();
      return wanted(vm) && vm;
    };
    return until(`${this.id} is ${what}`, look, { timeout_ms });
  }

  async start(): Promise<VmBody> {
    await this.#disconnect();
    await this.installation.client.expect([200, 202], 'POST', `${this.path}/vm`);
    return this.reached('running');
  }

  async stop({ force = false } = {}): Promise<VmBody> {
    await this.#disconnect();
    const query = force ? '?force=true' : '';
    await this.installation.client.expect([200, 202], 'DELETE', `${this.path}/vm${query}`);
    return this.reached('stopped');
  }

  async suspend(): Promise<VmBody> {
    await this.#disconnect();
    await this.installation.client.expect(202, 'POST', `${this.path}/vm/suspend`);
    return this.reached('suspended');
  }

  async restart(): Promise<VmBody> {
    await this.#disconnect();
    await this.installation.client.expect(202, 'POST', `${this.path}/vm/restart`);
    return this.reached('running');
  }

  flush(): Promise<ReceiptBody> {
    return this.installation.client.expect<ReceiptBody>(200, 'POST', `${this.path}/vm/flush`);
  }

  /**
   * Flushes until the guest's file systems were frozen, which a busy guest may not manage in time, so that its receipt rightly says
   * `crash`. `write`: before each flush.
   */
  async flushFrozen(write: () => Promise<unknown> = () => Promise.resolve()): Promise<ReceiptBody> {
    for (let attempt = 1; ; attempt++) {
      await write();
      const receipt = await this.flush();
      if (receipt.consistency === 'filesystem') return receipt;
      assert(attempt < 5, 'five flushes in a row could not freeze the guest');
    }
  }

  sshDetails(): Promise<SshBody> {
    return this.installation.client.expect<SshBody>(200, 'GET', `${this.path}/ssh`);
  }

  /** Trusts the host key that the API reports now. */
  async learnHost(ssh: SshClient = this.installation.ssh): Promise<SshBody> {
    this.#ssh = await this.sshDetails();
    ssh.know(this.#ssh.known_hosts);
    return this.#ssh;
  }

  get target(): SshBody {
    assert(this.#ssh !== undefined, 'learnHost came first');
    return this.#ssh;
  }

  /** The output of a shell command in the guest, over a connection that is reused within a boot. */
  sh(command: string, input: string | Uint8Array = ''): Promise<string> {
    return this.installation.ssh.output(this.target, command, { input, shared: true });
  }

  /** Like {@link sh}, over a new connection, and retried until it works, because the ingress may be restarting. */
  async shAgain(command: string): Promise<string> {
    await this.#disconnect();
    return untilWorks(`ssh to ${this.id}`, () => this.sh(command), { every_ms: 200 });
  }

  async #disconnect(): Promise<void> {
    if (this.#ssh !== undefined) await this.installation.ssh.disconnect(this.#ssh);
  }

  /** The id of the present boot of the guest's kernel. */
  bootId(): Promise<string> {
    return this.shAgain('cat /proc/sys/kernel/random/boot_id');
  }

  /** The paths of its disk's objects, oldest first. */
  async segments(): Promise<string[]> {
    const folder = join(this.installation.objectFolder(this.id), 'seg');
    const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
    return entries
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .sort();
  }

  /** Stops the VM, then starts it from the object store alone. */
  async moveThroughStore(): Promise<void> {
    await this.stop();
    await this.installation.removeOverlays(this.id);
    await this.start();
  }
}
