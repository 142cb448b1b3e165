"""Opens the online search that the settings ask for: a service, or an engine in this process."""

from __future__ import annotations

from pathlib import Path

from mia.chat import ChatModel
from mia.errors import ConfigError
from web_tools.cache import open_cache
from web_tools.client import WebClient
from web_tools.config import WebConfig
from web_tools.engine import WebEngine
from web_tools.fetch import Fetcher
from web_tools.image_folder import ImageFolder
from web_tools.picture_index import PictureIndex
from web_tools.protocol import ImageFinder, WebTools


def open_web(config: WebConfig, chat: ChatModel | None = None) -> WebTools:
    """The online search of a config: `url` decides between a service and this process.

    Args:
        config: the section `[web]`.
        chat: the model that extracts from pages, if `visit.extract` is `model`. Closed with what is returned.

    Raises:
        ConfigError: a setting that the others need is missing.
        DataError: the cache or the pictures cannot be opened.
    """
    return WebClient(config.url) if config.url else open_engine(config, chat)


def open_engine(config: WebConfig, chat: ChatModel | None = None) -> WebEngine:
    """An engine in this process; see `open_web`."""
    if config.visit.extract == "model" and chat is None:
        raise ConfigError(
            "web.visit.extract = model, but there is no model", remedy="name one in [models], or use passages"
        )
    finder = _finder(config)
    return WebEngine(
        config,
        open_cache(config.cache),
        Fetcher(config.visit, config.allow_hosts),
        finder,
        chat if config.visit.extract == "model" else None,
    )


def _finder(config: WebConfig) -> ImageFinder | None:
    if config.images.kind == "lens":
        return None
    folder: Path | None = config.images.path
    if folder is None:
        raise ConfigError(
            f"web.images.kind = {config.images.kind} needs a folder", remedy="set web.images.path", code="no_path"
        )
    return ImageFolder(folder) if config.images.kind == "cache" else PictureIndex.open(folder)
