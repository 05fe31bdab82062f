import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { newId } from '../../shared/ids.ts';
import { qemuArguments, type VmSpec } from './qemu-command.ts';
import { describeCommandLine } from './qemu-process.ts';

const SPEC: VmSpec = {
  instance_id: newId('inst'),
  vm_id: newId('vm'),
  cpus: 2,
  memory_mib: 512,
  accel: 'tcg',
  kernel_path: '/images/vmlinuz',
  initrd_path: '/images/initrd.img',
  hostname: 'web-1',
  overlay_path: '/data/overlays/a.qcow2',
  base_path: '/images/rootfs.img',
  runtime_dir: '/run/vm',
  network: { kind: 'user', ssh_forward_port: 30_000, restricted: false },
};

function valuesOf(argv: readonly string[], option: string): string[] {
  return argv.flatMap((value, index) => (argv[index - 1] === option ? [value] : []));
}

test('the process is named after its instance first of all, and starts paused and confined', () => {
  const argv = qemuArguments(SPEC);
  assert.deepEqual(argv.slice(0, 2), ['-name', `guest=${SPEC.instance_id}`]);
  assert.ok(argv.includes('-S'));
  assert.deepEqual(valuesOf(argv, '-sandbox'), [
    'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
  ]);
  assert.deepEqual(valuesOf(argv, '-action'), ['shutdown=pause,reboot=reset,panic=pause']);
  assert.deepEqual(describeCommandLine(['qemu', ...argv]), {
    instance_id: SPEC.instance_id,
    vm_id: SPEC.vm_id,
    runtime_dir: '/run/vm',
  });
});

test('under TCG the machine has the accurate clock, under KVM the faster one, whose reboot needs a kernel parameter', () => {
  const tcg = qemuArguments(SPEC);
  assert.match(valuesOf(tcg, '-machine')[0] ?? '', /^q35,.*hpet=on/);
  assert.doesNotMatch(valuesOf(tcg, '-append')[0] ?? '', /reboot=t/);
  const kvm = qemuArguments({ ...SPEC, accel: 'kvm' });
  assert.match(valuesOf(kvm, '-machine')[0] ?? '', /^microvm,/);
  assert.match(valuesOf(kvm, '-append')[0] ?? '', / reboot=t /);
  assert.doesNotMatch(valuesOf(kvm, '-append')[0] ?? '', /mitigations=off|no_timer_check/);
  assert.deepEqual(valuesOf(kvm, '-cpu'), ['host']);
});

test('the disk is overlay over a read-only base, a guest never sees an I/O error, discards reach the file', () => {
  const nodes = valuesOf(qemuArguments(SPEC), '-blockdev').map((text) => JSON.parse(text));
  assert.deepEqual(
    nodes.map((node) => node['node-name']),
    ['base-file', 'base', 'overlay-file', 'overlay'],
  );
  assert.ok(nodes[0]['read-only'] && nodes[1]['read-only']);
  assert.equal(nodes[3].backing, 'base');
  assert.ok(nodes.slice(2).every((node) => node.discard === 'unmap'));
  const devices = valuesOf(qemuArguments(SPEC), '-device').map((text) => JSON.parse(text));
  const disk = devices.find((device) => device.id === 'disk0');
  assert.deepEqual([disk.drive, disk.werror, disk.rerror], ['overlay', 'stop', 'stop']);
});

test('a lost NBD backing makes reads wait rather than fail', () => {
  const argv = qemuArguments({
    ...SPEC,
    lazy: { socket_path: '/run/nbd.sock', export_name: 'd', reconnect_delay_seconds: 60 },
  });
  const nodes = valuesOf(argv, '-blockdev').map((text) => JSON.parse(text));
  const lazy = nodes.find((node) => node.driver === 'nbd');
  assert.deepEqual([lazy['node-name'], lazy['reconnect-delay'], lazy['read-only']], ['lazy', 60, true]);
  assert.equal(nodes.find((node) => node.driver === 'qcow2').backing, 'lazy');
});

test('no path can add an option: the vector keeps its shape and every comma of a path is escaped or inside JSON', () => {
  const hostile = fc
    .string({
      unit: fc.constantFrom(',', '=', '"', '\\', ' ', 'a', ':', '-', '/', '{', '}', 'é'),
      maxLength: 30,
    })
    .map((text) => `/${text}`);
  const shape = qemuArguments(SPEC).filter((value) => value.startsWith('-'));
  fc.assert(
    fc.property(hostile, hostile, hostile, (runtime_dir, overlay_path, base) => {
      const argv = qemuArguments({
        ...SPEC,
        runtime_dir,
        overlay_path,
        base_path: base,
      });
      assert.deepEqual(
        argv.filter((value) => value.startsWith('-')),
        shape,
      );
      for (const text of valuesOf(argv, '-chardev')) {
        const options = text.replaceAll(',,', '').split(',');
        assert.equal(options.length, 5, text);
        assert.deepEqual(options.slice(3), ['server=on', 'wait=off']);
      }
      const nodes = valuesOf(argv, '-blockdev').map((text) => JSON.parse(text));
      assert.equal(nodes[2].filename, overlay_path);
      assert.equal(nodes[0].filename, base);
    }),
  );
});

test('each part of the kernel command line is one word: hostile host names and parameters are refused', () => {
  for (const hostname of ['', '-a', 'a b', 'a,b', 'a"', 'a\nb', 'x init=/bin/sh', 'a'.repeat(64), 'ä']) {
    assert.throws(() => qemuArguments({ ...SPEC, hostname }), { name: 'InvariantError' }, hostname);
  }
  for (const word of ['', 'a b', 'a"b', 'a\tb']) {
    assert.throws(
      () => qemuArguments({ ...SPEC, kernel_parameters: [word] }),
      { name: 'InvariantError' },
      word,
    );
  }
});

test('a socket path that the kernel would cut off is refused with advice', () => {
  assert.throws(
    () => qemuArguments({ ...SPEC, runtime_dir: `/${'d'.repeat(100)}` }),
    /choose a shorter data folder/,
  );
});

test('relative paths, foreign ids and numbers out of range are refused', () => {
  const bad: Partial<VmSpec>[] = [
    { overlay_path: 'overlay' },
    { kernel_path: '' },
    { instance_id: 'inst_x,debug-threads=on' },
    { vm_id: 'x' },
    { cpus: 0 },
    { cpus: 1.5 },
    { memory_mib: 1 },
    { network: { kind: 'user', ssh_forward_port: 70_000, restricted: false } },
  ];
  for (const change of bad) {
    assert.throws(
      () => qemuArguments({ ...SPEC, ...change }),
      { name: 'InvariantError' },
      JSON.stringify(change),
    );
  }
});
