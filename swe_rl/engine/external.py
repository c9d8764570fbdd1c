"""Uses engines that somebody else started: one for each address in engine.urls.

Invariants:
- The servers are never started, stopped or reconfigured here; only their weights change, and only where a folder is
  shared with them.
- Their key comes from the environment, VLLM_API_KEY or else OPENAI_API_KEY.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from swe_rl.config.environment import SERVER_KEYS, key_of
from swe_rl.config.schema import Config
from swe_rl.engine.engine import LossTeller
from swe_rl.engine.server.client import ConnectionLostError, HttpClient, SilentError
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Patience, needs_of_run
from swe_rl.engine.server.weights import WeightFolders
from swe_rl.errors import UserError

_BUILTIN = "builtin:"


class ExternalServerError(UserError):
    """A server of engine.urls is not there."""


class ExternalEngine(HttpEngine):
    """An engine whose server somebody else started.

    `teller` is told when the server is lost, about which only whoever started it can do something, and is back.
    """

    teller: LossTeller | None = None

    async def _broke_off(self) -> None:
        """Looks at the server, so that it is known to be lost before the request is tried again on another engine."""
        if self._monitor is not None:
            await self._monitor.suspect()

    def _tell(self, up: bool) -> None:
        if self.teller is not None and up:
            self.teller.back()
        elif self.teller is not None:
            then = "its work goes to the others until it is back"
            self.teller.lost(str(self.why_lost), self.in_flight.loss, then)
        super()._tell(up)

    async def start(self) -> None:
        """Raises ExternalServerError, ServerRefusedError, EngineError."""
        try:
            await super().start()
        except ConnectionLostError as error:
            raise ExternalServerError(
                f"engine.urls: {error}. Start the server or correct its address; engine=vllm starts servers itself"
            ) from error
        except SilentError as error:
            raise ExternalServerError(
                f"engine.urls: {error}. Look at the server's log, or correct its address; one that has just been "
                "started, or that others keep busy, may need more (engine.start_timeout_s)"
            ) from error


def external_engines(
    config: Config, environ: Mapping[str, str], weights: WeightFolders | None, say: Callable[[str], None]
) -> list[ExternalEngine]:
    """Returns engine0, engine1, ... in the order of engine.urls; `say` hears of silent servers. Raises UserError."""
    urls = config.engine.urls
    if not urls:
        raise ExternalServerError(
            "engine=external needs the servers' addresses: engine.urls=[http://host:8000/v1], or VLLM_URL in the "
            "environment"
        )
    key = key_of(environ, *SERVER_KEYS)
    clients = [HttpClient(url, api_key=key) for url in urls]
    doubled = {client.url for client in clients if sum(other.url == client.url for other in clients) > 1}
    if doubled:
        raise ExternalServerError(f"engine.urls names {sorted(doubled)[0]} twice; each address is one engine")
    wanted = replace(needs_of_run(config), model=config.engine.served_model or _plain_path(config))
    return [
        ExternalEngine(
            client,
            wanted,
            name=f"engine{index}",
            max_num_seqs=config.engine.max_num_seqs,
            weights=weights,
            patience=Patience(config.engine.start_timeout_s, say),
        )
        for index, client in enumerate(clients)
    ]


def _plain_path(config: Config) -> str | None:
    """Returns the name that a server started with this model has by default; None where that cannot be known."""
    path = config.model.path
    if path.startswith(_BUILTIN):
        return None
    return path
