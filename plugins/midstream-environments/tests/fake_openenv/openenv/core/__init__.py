"""The client of OpenEnv as midstream uses it, over HTTP: tests need neither the library nor its seconds of imports."""

import asyncio
import json
import urllib.request
from types import SimpleNamespace
from uuid import uuid4

from websockets.exceptions import ConnectionClosed


class GenericEnvClient:
    def __init__(self, base_url, message_timeout_s, mode):
        self._url, self._session = base_url, uuid4().hex

    async def connect(self):
        pass

    async def disconnect(self):
        await self._send("close")

    async def reset(self, **arguments):
        return await self._send("reset", **arguments)

    async def step(self, action):
        return await self._send("step", **action)

    async def _send(self, kind, **data):
        body = json.dumps({"session": self._session, "type": kind, "data": data}).encode()
        try:
            said = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(f"{self._url}/session", body)))
        except OSError as error:
            raise ConnectionClosed(str(error)) from error
        if "code" in said:
            raise RuntimeError(f"Server error: {said['message']} (code: {said['code']})")
        return SimpleNamespace(**said)
