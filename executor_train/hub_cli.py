"""`mia model fetch`: from names on the hub to checked folders and a profile. `mia model push` is in `publish_cli`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_train.released import RELEASED, Fetched, Released, data_files, named, write_profile
from mia import checkpoints, embedded, hub
from mia.cli import parser
from mia.errors import ConfigError, ModelError
from mia.hub_files import bring
from mia.paths import cache, home


def fetch(argv: Sequence[str]) -> int:
    """`mia model fetch`."""
    args = fetch_words().parse_args(argv)
    if not args.names:
        return _embedded(args)
    wanted = {name: named(name, args.role, args.revision) for name in args.names}
    roles = [release.role or "default" for release in wanted.values() if release.source.kind == "model"]
    if len(set(roles)) < len(roles):
        raise ConfigError(f"two models for the role {max(roles, key=roles.count)}", remedy="fetch one after the other")
    if args.out and len(wanted) > 1:
        raise ConfigError("--out is the folder of one name", remedy="fetch one after the other, or leave it out")
    fetched = [_fetched(name, release, args) for name, release in wanted.items()]
    path = args.profile or home() / "profiles" / f"{'+'.join(map(_slug, wanted))}.toml"
    used = [item for item in fetched if item.checkpoint or item.released.use]
    if used:
        write_profile(path, used, force=args.force)
    _report(fetched, path.absolute() if used else None, args.json)
    return 0


def fetch_words() -> argparse.ArgumentParser:
    """The parser of the command."""
    known = "\n".join(f"  {name:14}{release.source}: {release.what}" for name, release in RELEASED.items())
    made = parser(
        "model fetch",
        f"Fetch models and data from the Hugging Face hub, check them, and write the profile that uses them. Without\n"
        f"NAME: the embedded model, {embedded.HUB} (Apache-2.0). A broken fetch goes on where it\n"
        "stopped. HF_TOKEN says who asks, HF_ENDPOINT names another hub.\n\n"
        f"NAME is owner/name, owner/name/folder, datasets/owner/name…, or one of the original's releases:\n{known}",
        [
            "mia model fetch",
            "mia model fetch mia-executor mia-planner --profile original.toml",
            "mia model fetch owner/my-planner --role planner --json   # one of your own",
        ],
    )
    made.add_argument("names", nargs="*", metavar="NAME", help="what to fetch; none: the embedded model")
    made.add_argument("--role", choices=("executor", "planner"), help="what a model is for; none: all roles")
    made.add_argument("--revision", default="main", help="branch, tag or commit (default main)")
    made.add_argument("--out", type=Path, metavar="DIR", help="where to keep it (default: `hub` in $MIA_CACHE)")
    made.add_argument("--profile", type=Path, metavar="FILE", help="TOML to write (default: `profiles` in $MIA_HOME)")
    made.add_argument("--any-model", action="store_true", help="take any base model and chat template for the role")
    made.add_argument("--force", action="store_true", help="fetch even if it is there, and replace it and its profile")
    made.add_argument("--json", action="store_true", help="print what was fetched as JSON")
    return made


def _embedded(args: argparse.Namespace) -> int:
    given = {"--role": args.role, "--out": args.out, "--profile": args.profile, "--any-model": args.any_model}
    without = [flag for flag, value in given.items() if value]
    if without:
        raise ConfigError(f"{without[0]} without a NAME", remedy="name what to fetch, or leave it out")
    place, manifest = embedded.fetch(replace=args.force)
    print(json.dumps({"folder": str(place), **manifest}) if args.json else place)
    return 0


def _fetched(name: str, release: Released, args: argparse.Namespace) -> Fetched:
    root = (args.out or cache() / "hub" / _slug(name)).absolute()
    listing = hub.look(release.source)
    if release.source.kind == "dataset":
        if not listing.files:
            raise ModelError(f"{release.source} is empty", remedy="name another folder or revision", code="no_entry")
        _say(listing, listing.files, root)
        return Fetched(name, release, listing, bring(listing, root, listing.files, force=args.force))
    wanted = listing.matching(checkpoints.FILES)
    _refuse_no_checkpoint(listing, wanted)
    # Base and template first: a model of another kind is refused before its weights are fetched.
    small = bring(listing, root, listing.matching(checkpoints.SMALL), force=args.force)
    _check(checkpoints.read(small), release, args.any_model)
    _say(listing, wanted, root)
    found = checkpoints.read(bring(listing, root, wanted, force=args.force))
    checkpoints.check_files(found)
    return Fetched(name, release, listing, found.folder, found)


def _refuse_no_checkpoint(listing: hub.Listing, wanted: dict[str, hub.File]) -> None:
    names = {Path(path).name for path in wanted}
    if not names & {checkpoints.CONFIG, checkpoints.ADAPTER} or not any(n.endswith(".safetensors") for n in names):
        folders = ", ".join(listing.folders())
        raise ModelError(
            f"{listing.source} holds no checkpoint in safetensors",
            remedy=f"name one of its folders: {folders}" if folders else "name a checkpoint's folder",
            code="no_checkpoint",
        )


def _check(found: checkpoints.Checkpoint, release: Released, any_model: bool) -> None:
    if release.role and not any_model:
        checkpoints.check_base(found, release.role)
    checkpoints.check_template(found, strict=release.role is not None and not any_model)


def _say(listing: hub.Listing, wanted: dict[str, hub.File], root: Path) -> None:
    size = sum(file.size for file in wanted.values())
    print(f"mia: {listing.source}: {len(wanted)} files, {size / 1e9:.2f} GB, to {root}", file=sys.stderr)


def _slug(name: str) -> str:
    return name.replace("/", "--")


def _report(fetched: Sequence[Fetched], profile: Path | None, as_json: bool) -> None:
    if as_json:
        models: list[dict[str, Any]] = [
            {
                "name": item.name, "source": str(item.released.source), "kind": item.released.source.kind,
                "commit": item.listing.commit, "role": item.released.role, "folder": str(item.folder),
                "base": (item.checkpoint.base.hub if item.checkpoint.base else item.checkpoint.base_name)
                if item.checkpoint else None,
            }
            for item in fetched
        ]  # fmt: skip
        print(json.dumps({"profile": str(profile) if profile else None, "fetched": models}, ensure_ascii=False))
        return
    for item in fetched:
        print(f"{item.folder}   ({item.released.source} at {item.listing.commit[:12]})")
        for hint in _next(item):
            print(hint, file=sys.stderr)
    if profile:
        print(profile)


def _next(item: Fetched) -> Sequence[str]:
    """What is left to do by hand."""
    if item.name == "wiki25":
        corpus, index = item.folder / "wiki25_new.jsonl", item.folder / "e5_Flat.index"
        return [f"next: mia index adopt --corpus {corpus} --faiss {index} --encoder intfloat/e5-base-v2 --out wiki25"]
    if item.released.use == "dataset" and len(data_files(item.folder)) > 1:
        return ["next: choose one of its files in the profile"]
    return []
