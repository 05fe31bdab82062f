"""`list_images.py CERTIFICATE`: lists the images at BERTH_URL over TLS with each shape, and with the system's certificates alone."""
import asyncio
import os
import ssl
import sys

import berth
import berth.aio

URL = os.environ["BERTH_URL"]


def call(module, tls):
    return module.Berth(URL, retries=0, tls=tls).call(berth.operations.list_images)


async def call_async(tls):
    return await call(berth.aio, tls)


def tell(run):
    try:
        print(run()["data"][0]["name"])
    except berth.BerthConnectionError as error:
        print("certificate" in str(error).lower(), "not trusted")


for trusted in (ssl.create_default_context(cafile=sys.argv[1]), None):
    tell(lambda: call(berth, trusted))
    tell(lambda: asyncio.run(call_async(trusted)))
