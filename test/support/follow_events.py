"""
Follows events of the type instance.created: `follow_events.py sync|async`, with BERTH_URL and BERTH_API_KEY. Prints
`open` each time the stream opens, and the id of each instance. With `async`, the stream ends at the first line on
stdin, and the program at the second.
"""
import asyncio
import sys

import berth
import berth.aio

QUERY = {"type": "instance.created"}


def say(text):
    print(text, flush=True)


def follow():
    for event in berth.Berth.from_env().events(QUERY, on_open=lambda: say("open")):
        say(event["data"]["instance"]["id"])


async def follow_async():
    async for event in berth.aio.Berth.from_env().events(QUERY, on_open=lambda: say("open")):
        say(event["data"]["instance"]["id"])


async def until_told():
    task = asyncio.ensure_future(follow_async())
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, sys.stdin.readline)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        say("cancelled")
    await loop.run_in_executor(None, sys.stdin.readline)


if sys.argv[1] == "async":
    asyncio.run(until_told())
else:
    follow()
