"""The verb `mia serve web`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from mia.cli import parse, parser
from mia.config import Config, Models, load
from mia.errors import ConfigError
from mia.http import serve as serve_app
from web_tools.config import WebConfig

if TYPE_CHECKING:
    from fastapi import FastAPI


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
            "mia serve web --web.mode replay     # answers from the cache alone; no key, no costs",
        ],
    )
    args.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    args.add_argument("--port", type=int, default=8002, help="port to listen on; 0: any free one (default: 8002)")
    args.add_argument("--config", type=Path, metavar="FILE", help="TOML file with a section [web]")
    given, flags = parse(args, argv)
    config = load(ServiceConfig, given.config, flags)
    if config.web.url:
        raise ConfigError("web.url is set, but a service searches itself", remedy="set web.base_url instead of it")
    serve_app(given.host, given.port, lambda: _open_app(config))
    return 0


def _open_app(config: ServiceConfig) -> tuple[FastAPI, str]:
    from mia.chat import open_chat
    from web_tools.app import create_app
    from web_tools.open import open_engine
    from web_tools.serper import api_key

    web = config.web
    if web.mode == "live":
        api_key(web)  # better told now than at the first search
    chat = open_chat(config.models.of("executor")) if web.visit.extract == "model" else None
    return create_app(open_engine(web, chat)), f"online search, {web.mode}, by {web.base_url},"
