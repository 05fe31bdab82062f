"""
Runs a table of calls with the Python client, as run-calls.ts does with the TypeScript client. Prints the outcomes as
JSON. GIVEN is a JSON object of values that calls name as `$name`.

  BERTH_URL=… BERTH_API_KEY=… run_calls.py sync|async TABLE GIVEN
"""
import asyncio
import inspect
import json
import sys

import berth
import berth.aio


def filled(value, kept):
    if isinstance(value, str):
        return kept[value[1:]] if value.startswith("$") else value
    if isinstance(value, list):
        return [filled(each, kept) for each in value]
    if isinstance(value, dict):
        return {name: filled(each, kept) for name, each in value.items()}
    return value


def plain(value):
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (berth.ExecResult, berth.ExecOutput)):
        names = [name for name in dir(value) if not name.startswith("_")]
        return {name: plain(getattr(value, name)) for name in names}
    if value is None or isinstance(value, (str, int, float)):
        return value
    return {"id": getattr(value, "id", None)}


def field_of(value, name):
    if name == ".":
        return value
    return value[name] if isinstance(value, dict) else getattr(value, name)


def start(client, call, kept):
    name = call.get("operation") or call.get("list")
    if name:
        given = {part: filled(call[part], kept) for part in ("path", "query", "body") if part in call}
        run = client.call if "operation" in call else client.list
        return run(getattr(berth.operations, name), **given)
    options = filled(call.get("options", {}), kept)
    if "keep_etag" in call:
        options["on_etag"] = lambda etag: kept.update({call["keep_etag"]: etag})
    verb = filled(call["on"], kept) if "on" in call else client
    for word in call["verb"].split("."):
        verb = getattr(verb, word)
    return verb(*filled(call.get("arguments", []), kept), **options)


async def result_of(returned):
    """Also of the blocking shape, which returns no awaitables."""
    if inspect.isawaitable(returned):
        return await returned
    if hasattr(returned, "__aiter__"):
        return [each async for each in returned]
    return list(returned) if hasattr(returned, "__next__") else returned


async def main(shape, table, given):
    client = (berth.aio if shape == "async" else berth).Berth.from_env()
    kept = json.loads(given)
    outcomes = []
    with open(table, encoding="utf-8") as file:
        calls = json.load(file)
    for call in calls:
        try:
            result = await result_of(start(client, call, kept))
            for name, field in call.get("keep", {}).items():
                kept[name] = field_of(result, field)
            outcomes.append({"gave": plain(result), "wanted": filled(call.get("gives"), kept)})
        except berth.BerthError as error:
            outcomes.append({"failed": {
                "error": "BerthError", "status": error.status, "code": error.code, "details": error.details,
                "message": error.message, "has_request_id": error.request_id is not None,
                "retry_after_seconds": error.retry_after_seconds,
            }})
        except Exception as error:
            outcomes.append({"failed": {"error": type(error).__name__, "message": str(error)}})
    print(json.dumps(outcomes))


asyncio.run(main(*sys.argv[1:]))
