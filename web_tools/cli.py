"""The verb `mia serve web`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import Field

from mia.cli import parse, parser
from mia.config import Config, Models, load
from mia.errors import ConfigError
from web_tools.config import WebConfig
from web_tools.extras import need


class ServiceConfig(Config):
    """Config of the web service. `models` is used only if a model extracts from pages."""

    web: WebConfig = Field(default_factory=WebConfig)  # its paths depend on the environment
    models: Models = Field(default_factory=Models)


def serve(argv: Sequence[str]) -> int:
    """`mia serve web --port N`."""
    args = parser(
        "serve web",
        "Serve online search over HTTP: /v1/search, /v1/image_search, /v1/visit, and the original's /server/search.\n"
        "The key of Serper is taken from SERPER_API_KEY (or SERPER_KEY_ID). There is no access control: whoever\n"
        "reaches the port can spend your credits.",
        [
            "mia serve web --port 8002",
            "mia serve web --web.mode replay     (answers from the cache alone; no key, no costs)",
        ],
    )
    args.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    args.add_argument("--port", type=int, default=8002, help="port to listen on; 0: any free one (default: 8002)")
    args.add_argument("--config", type=Path, metavar="FILE", help="TOML file with a section [web]")
    given, flags = parse(args, argv)
    if not 0 <= given.port <= 65535:
        raise ConfigError(f"cannot listen on port {given.port}", remedy="give a --port from 0 to 65535")
    config = load(ServiceConfig, given.config, flags)
    if config.web.url:
        raise ConfigError("web.url is set, but a service searches itself", remedy="set web.base_url instead of it")
    _run(config, given.host, given.port)
    return 0


def _run(config: ServiceConfig, host: str, port: int) -> None:
    uvicorn = need("uvicorn", "serve")
    need("fastapi", "serve")
    need("prometheus_client", "serve")
    from mia.chat import open_chat
    from web_tools.app import create_app
    from web_tools.open import open_engine
    from web_tools.serper import api_key

    web = config.web
    if web.mode == "live":
        api_key(web)  # better told now than at the first search
    with _listening(host, port) as listener:
        chat = open_chat(config.models.of("executor")) if web.visit.extract == "model" else None
        app = create_app(open_engine(web, chat))
        listener.listen()  # whoever reads the next line may connect at once
        address = f"http://{host}:{listener.getsockname()[1]}"
        print(f"serving online search ({web.mode}, {web.base_url}) at {address}", file=sys.stderr, flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        with suppress(KeyboardInterrupt):  # the usual way to end a service
            server.run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A bound socket: an occupied port is told before anything is opened."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", remedy="give another --host or --port") from error
    return listener
