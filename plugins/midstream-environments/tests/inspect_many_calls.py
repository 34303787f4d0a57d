"""More calls than one evaluation takes, of which one hangs and is given up: what each call says, a line each.

python inspect_many_calls.py ADAPTER TASK BASE_URL
"""

import asyncio
import importlib.util
import sys

adapter, task, base_url = sys.argv[1:]
spec = importlib.util.spec_from_file_location("midstream_adapter", adapter)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.CALLS, module.CLOSE_S = 2, 0.5
made = module.Adapter(task=task, arguments={"wrong": ["text", "hangs"]}, roles={}, score="", sandbox="none")
sound, hangs = (row["case"] for row in made.rows())


async def call(case, limit_s=None):
    """The text of the error that one call ends in."""
    try:
        async with asyncio.timeout(limit_s):
            await made.run(case, base_url, "none", "m")
    except (RuntimeError, TimeoutError) as error:
        return f"{type(error).__name__} {error}"


async def main():
    """One call, one that is given up, and eight more: two by two, and all at once."""
    said = [await call(sound), await call(hangs, 3.0), await call(sound)]
    said += await asyncio.gather(*(call(sound) for _ in range(7)))
    sys.stdout.write("RESULT" + "\n".join(said))


asyncio.run(main())
