"""
Copies files into a guest and out of it, with the blocking and with the asynchronous Python client: `copy_files.py ID`,
with BERTH_URL and BERTH_API_KEY. The VM of the instance must run. Fails if bytes differ.
"""
import asyncio
import hashlib
import io
import os
import random
import sys

import berth
import berth.aio

SIZE = 20 * 2**20
CONTENT = random.Random(7).randbytes(SIZE)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
#: Bytes that are not UTF-8, and a percent sign.
NAME = b"/srv/odd/\xff\xfe %41\n"


def pieces():
    for at in range(0, SIZE, 100_000):
        yield CONTENT[at : at + 100_000]


async def pieces_async():
    for piece in pieces():
        yield piece


def copy(vm):
    for data in (io.BytesIO(CONTENT), pieces(), CONTENT):
        assert vm.files.write(NAME, data)["size"] == SIZE
        assert hashlib.sha256(vm.files.read(NAME)).hexdigest() == DIGEST
    assert b"".join(vm.files.stream(NAME)) == CONTENT
    (entry,) = vm.files.list("/srv/odd")
    assert os.fsencode(entry["path"]) == NAME
    vm.files.remove(entry["path"])
    # An answer of which only the beginning is read.
    vm.files.write("/srv/odd/big", CONTENT)
    stream = vm.files.stream("/srv/odd/big")
    assert CONTENT.startswith(next(stream))
    stream.close()


async def copy_async(vm):
    for data in (io.BytesIO(CONTENT), pieces_async(), CONTENT):
        assert (await vm.files.write(NAME, data))["size"] == SIZE
        assert hashlib.sha256(await vm.files.read(NAME)).hexdigest() == DIGEST
    assert b"".join([piece async for piece in vm.files.stream(NAME)]) == CONTENT
    both = await asyncio.gather(vm.exec("sleep 1; echo one"), vm.exec("echo two"))
    assert [each.stdout for each in both] == ["one\n", "two\n"]
    await vm.files.remove("/srv/odd", recursive=True)


copy(berth.Berth.from_env().vm(sys.argv[1]))
asyncio.run(copy_async(berth.aio.Berth.from_env().vm(sys.argv[1])))
print("same")
