#!/usr/bin/python3
"""
A disk whose power can be cut, as one file in a FUSE folder: cut-disk.py FOLDER.

FOLDER/fuse/disk is the disk. FOLDER/current has everything that was written, and FOLDER/durable what was synced. A loop
device over the disk turns each flush of its file system into fsync of that file, so this program knows what is durable.

When a seed is written to FOLDER/fuse/cut, the power is cut within the next 64 writes, often in the middle of a flush.
When it is written a second time, the power is cut at once. Every later write is refused. The seed chooses what is kept
of the writes since the last fsync: none, all, or each with probability 1/2, a tenth of those torn at 512 bytes.
FOLDER/cut then reports the cut.
"""
import errno
import os
import random
import sys

try:
    import fuse
except ImportError:
    import fusepy as fuse

SECTOR = 512
COUNTDOWN = 64


class Disk(fuse.Operations):
    def __init__(self, folder):
        self.folder = folder
        self.current = os.open(f'{folder}/current', os.O_RDWR)
        self.durable = os.open(f'{folder}/durable', os.O_RDWR)
        self.size = os.fstat(self.durable).st_size
        self.pending = []  # (offset, bytes) since the last fsync
        self.off = False
        self.seed = None
        self.left = 0  # writes until the power goes, once it was asked for

    def ask(self, seed):
        if self.seed is not None:
            return self.cut()
        self.seed = seed
        self.chance = random.Random(seed)
        self.left = 1 + self.chance.randrange(COUNTDOWN)

    def cut(self):
        self.off = True
        mode = self.chance.choice(['none', 'all', 'some', 'some'])
        kept = torn = 0
        for offset, data in self.pending:
            if mode == 'none' or (mode == 'some' and self.chance.random() < 0.5):
                continue
            if mode == 'some' and len(data) > SECTOR and self.chance.random() < 0.1:
                data = data[: self.chance.randrange(1, len(data) // SECTOR + 1) * SECTOR]
                torn += 1
            os.pwrite(self.durable, data, offset)
            kept += 1
        with open(f'{self.folder}/cut.part', 'w') as report:
            report.write(f'{kept} of {len(self.pending)} writes kept, {torn} torn\n')
        os.rename(f'{self.folder}/cut.part', f'{self.folder}/cut')

    def refuse_if_off(self):
        if self.off:
            raise fuse.FuseOSError(errno.EIO)

    def getattr(self, path, fh=None):
        if path == '/':
            return dict(st_mode=0o40700, st_nlink=2)
        if path == '/disk':
            return dict(st_mode=0o100600, st_nlink=1, st_size=self.size)
        if path == '/cut':
            return dict(st_mode=0o100200, st_nlink=1, st_size=0)
        raise fuse.FuseOSError(errno.ENOENT)

    def readdir(self, path, fh):
        return ['.', '..', 'disk', 'cut']

    def open(self, path, flags):
        return 1

    def read(self, path, length, offset, fh):
        return os.pread(self.current, length, offset)

    def write(self, path, data, offset, fh):
        self.refuse_if_off()
        if path == '/cut':
            self.ask(int(data))
            return len(data)
        if self.left:
            self.left -= 1
            if not self.left:
                self.cut()
                self.refuse_if_off()
        os.pwrite(self.current, data, offset)
        self.pending.append((offset, data))
        return len(data)

    def fsync(self, path, datasync, fh):
        self.refuse_if_off()
        if self.left and self.pending and self.chance.random() < 0.3:
            self.cut()
            self.refuse_if_off()
        for offset, data in self.pending:
            os.pwrite(self.durable, data, offset)
        self.pending = []
        return 0

    def flush(self, path, fh):
        return 0

    def truncate(self, path, length, fh=None):
        return 0

    def fallocate(self, *_):
        raise fuse.FuseOSError(errno.EOPNOTSUPP)


if __name__ == '__main__':
    folder = sys.argv[1]
    fuse.FUSE(
        Disk(folder), f'{folder}/fuse', foreground=True, nothreads=True, big_writes=True, max_write=1 << 20,
        allow_other=True, direct_io=False, attr_timeout=3600, fsname='cut-disk',
    )
