"""A headless Chromium that a test drives by its DevTools protocol: it clicks, types and measures."""

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from tests.support.waiting import wait_until

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
        context = await self.send("Target.createBrowserContext")
        target = await self.send("Target.createTarget", url="about:blank", **context)
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        return context

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


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """Starts a Chromium and gives the address that it is driven by. Tests share one: a start costs a second of CPU."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", "--remote-debugging-port=0"]
    command += [*(f"--disable-{name}" for name in _OFF), f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = profile / "DevToolsActivePort"
        wait_until(lambda: port_file.exists() and len(port_file.read_text().split()) == 2, timeout_s=_LIMIT_S)
        port, path = port_file.read_text().split()
        yield f"http://127.0.0.1:{port}{path}"
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def browser(address: str):
    """A page in a window of its own: it shares no cookies, storage or cache with others in that Chromium."""
    async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
        page = Browser(socket)
        context = await page.attach()
        try:
            yield page
        finally:
            page._session = None
            await page.send("Target.disposeBrowserContext", **context)
