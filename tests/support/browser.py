"""A headless Chromium that a test drives by its DevTools protocol: it clicks, types and measures."""

import asyncio
import itertools
import json
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

CHROMIUM = shutil.which("chromium")
_OFF = ("gpu", "quic", "background-networking", "component-update", "sync")
_LIMIT_S = 20.0


class Browser:
    """One page. `errors`: what its scripts threw, and what its policy refused."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self._socket, self._numbers, self._session = socket, itertools.count(1), None

    async def send(self, method, **params):
        number = next(self._numbers)
        request = {"id": number, "method": method, "params": params}
        await self._socket.send_json(request | ({"sessionId": self._session} if self._session else {}))
        async with asyncio.timeout(_LIMIT_S):
            while True:
                said = await self._socket.receive_json()
                self._hear(said)
                if said.get("id") == number:
                    assert "error" not in said, said
                    return said["result"]

    def _hear(self, said):
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(said["params"]["exceptionDetails"]["exception"].get("description", "?"))
        if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            self.errors.append(said["params"]["entry"]["text"])

    async def attach(self):
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")

    async def open(self, url):
        await self.send("Page.navigate", url=url)

    async def width(self, pixels):
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=1000, deviceScaleFactor=1, mobile=False
        )

    async def media(self, scheme, kind=""):
        """`kind`: screen where it is empty, or print."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    async def js(self, expression):
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def press(self, key):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    async def until(self, expression, timeout_s=10.0):
        """The value, once it is true; the page's text where it never is."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while not (value := await self.js(expression)):
            late = asyncio.get_running_loop().time() > deadline_s
            assert not late, (expression, self.errors, await self.js("document.body.innerText"))
            await asyncio.sleep(0.05)
        return value


@asynccontextmanager
async def browser(profile: Path):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-port=0"]
    command += [*(f"--disable-{name}" for name in _OFF), f"--user-data-dir={profile}", "about:blank"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        port_file = profile / "DevToolsActivePort"
        async with asyncio.timeout(_LIMIT_S):
            while not (port_file.exists() and len(port_file.read_text().split()) == 2):  # noqa: ASYNC110 - of a file
                await asyncio.sleep(0.02)
        port, path = port_file.read_text().split()
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{port}{path}", max_msg_size=0) as socket,
        ):
            page = Browser(socket)
            await page.attach()
            yield page
            page._session = None
            await socket.send_str(json.dumps({"id": 0, "method": "Browser.close"}))
    finally:
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
