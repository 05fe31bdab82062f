/**
 * The same image started by libvirt: `virsh start` of a domain on a new overlay, with the same kernel, machine type, memory and
 * devices, and QEMU's user network. The benchmark has its own libvirt daemon, a session of an unprivileged user. `virsh` starts
 * it, and it exits two minutes after its last use.
 */
import { execFile } from 'node:child_process';
import { statSync } from 'node:fs';
import { chmod, chown, constants, copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { freeLoopbackPort } from '../src/host/vm/free-port.ts';
import { TCG_KERNEL_WORDS } from '../src/host/vm/qemu-command.ts';
import type { Accelerator } from '../src/host/vm/vm-spec.ts';
import { newId } from '../src/shared/ids.ts';
import type { BareImage } from './bare-machine.ts';
import type { SshTarget } from './ssh.ts';

const run = promisify(execFile);

/** Debian's `nobody`, because root would get libvirt's system session. */
const NOBODY = 65_534;
const MEMORY_MIB = 512;
const DISK_BYTES = 8 * 2 ** 30;
const DOMAIN = 'berth-bench';
const PATIENCE_MS = 60_000;
const UP_MS = 120_000;

export async function libvirtIsThere(): Promise<boolean> {
  return run('virsh', ['--version']).then(
    () => true,
    () => false,
  );
}

export class Libvirt {
  readonly #folder: string;
  readonly #rootfs_path: string;
  readonly #image_dir: string;
  readonly #accel: Accelerator;

  private constructor(folder: string, image_dir: string, accel: Accelerator) {
    this.#folder = folder;
    this.#rootfs_path = join(folder, 'rootfs.img');
    this.#image_dir = image_dir;
    this.#accel = accel;
  }

  /** A folder with a copy of the image that libvirt's user may read. */
  static async prepare(image: BareImage, accel: Accelerator): Promise<Libvirt> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-libvirt-'));
    const libvirt = new Libvirt(folder, folder, accel);
    try {
      await libvirt.#prepare(image);
      return libvirt;
    } catch (error) {
      await rm(folder, { recursive: true, force: true, maxRetries: 5 });
      throw error;
    }
  }

  async #prepare(image: BareImage): Promise<void> {
    const folder = this.#folder;
    await copyFile(image.rootfs_path, this.#rootfs_path, constants.COPYFILE_FICLONE);
    for (const name of ['vmlinuz', 'initrd.img'])
      await copyFile(join(image.image_dir, name), join(folder, name));
    for (const name of ['run', 'config', 'cache', 'data', 'home']) await mkdir(join(folder, name));
    await this.#giveAway(folder, this.#rootfs_path, join(folder, 'vmlinuz'), join(folder, 'initrd.img'));
    for (const name of ['run', 'config', 'cache', 'data', 'home']) await this.#giveAway(join(folder, name));
    await this.#virsh('version'); // starts the daemon, which queries QEMU's capabilities
  }

  /** Defined before the clock starts. `started_ms` is performance.now() just before `virsh start`. */
  async start(): Promise<{ readonly started_ms: number; readonly target: SshTarget }> {
    const overlay = join(this.#folder, 'overlay.qcow2');
    await rm(overlay, { force: true });
    const backing = ['-b', this.#rootfs_path, '-F', 'raw'];
    await run('qemu-img', ['create', '-q', '-f', 'qcow2', ...backing, overlay, String(DISK_BYTES)]);
    await this.#giveAway(overlay);
    const target = { host: '127.0.0.1', port: await freeLoopbackPort() };
    const xml_path = join(this.#folder, 'domain.xml');
    await writeFile(xml_path, this.#domain(overlay, target.port));
    await this.#virsh('define', xml_path);
    const started_ms = performance.now();
    await this.#virsh('start', DOMAIN);
    return { started_ms, target };
  }

  /** Resolves when its guest agent answers, like the bare machine's. */
  async untilUp(signal: AbortSignal): Promise<void> {
    const deadline_ms = performance.now() + UP_MS;
    const ping = () => this.#virsh('qemu-agent-command', DOMAIN, '{"execute":"guest-ping"}');
    for (;;) {
      try {
        await ping();
        return;
      } catch (error) {
        if (performance.now() > deadline_ms) throw error;
        await sleep(20, undefined, { signal });
      }
    }
  }

  async stop(): Promise<void> {
    await this.#virsh('destroy', DOMAIN);
    await this.#virsh('undefine', DOMAIN);
  }

  async end(): Promise<void> {
    await this.stop().catch(() => undefined);
    await rm(this.#folder, { recursive: true, force: true, maxRetries: 5 });
  }

  async #virsh(...args: string[]): Promise<void> {
    const at = (name: string) => join(this.#folder, name);
    const home = { HOME: at('home'), XDG_RUNTIME_DIR: at('run'), XDG_CONFIG_HOME: at('config') };
    const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', ...home };
    const command = ['virsh', '-q', '-c', 'qemu:///session', ...args];
    // Debian gives /dev/kvm to a group.
    const groups = this.#accel === 'kvm' ? `--groups=${statSync('/dev/kvm').gid}` : '--clear-groups';
    const as_nobody = ['setpriv', `--reuid=${NOBODY}`, `--regid=${NOBODY}`, groups, ...command];
    const [program = '', ...rest] = process.getuid?.() === 0 ? as_nobody : command;
    await run(program, rest, {
      env: { ...env, XDG_CACHE_HOME: at('cache'), XDG_DATA_HOME: at('data') },
      timeout: PATIENCE_MS,
    });
  }

  async #giveAway(...paths: string[]): Promise<void> {
    for (const path of paths) {
      await chmod(path, 0o755);
      if (process.getuid?.() === 0) await chown(path, NOBODY, NOBODY);
    }
  }

  #domain(overlay: string, port: number): string {
    const words = ['console=ttyS0 quiet loglevel=4 panic=1 berth.hostname=libvirt'];
    if (this.#accel === 'tcg') words.push(...TCG_KERNEL_WORDS);
    words.push(`berth.instance=${newId('inst')}`, `berth.vm=${newId('vm')}`);
    // libvirt's user network forwards no port.
    const network = ['-netdev', `user,id=n0,ipv6=off,hostfwd=tcp:127.0.0.1:${port}-:22`];
    const card = ['-device', 'virtio-net-pci,netdev=n0,addr=0x10,romfile='];
    return `<domain type='${this.#accel === 'kvm' ? 'kvm' : 'qemu'}' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>${DOMAIN}</name>
  <memory unit='MiB'>${MEMORY_MIB}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>${join(this.#image_dir, 'vmlinuz')}</kernel>
    <initrd>${join(this.#image_dir, 'initrd.img')}</initrd>
    <cmdline>${words.join(' ')}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='${this.#accel === 'kvm' ? 'host-passthrough' : 'maximum'}'/>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' discard='unmap'/>
      <source file='${overlay}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <serial type='pty'/>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>
${[...network, ...card].map((argument) => `    <qemu:arg value='${argument}'/>`).join('\n')}
  </qemu:commandline>
</domain>
`;
  }
}
