"""The scripts that train, above all both roles in turns: what each stage is told, by commands that only note it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MIA = """#!/bin/sh
# Notes its words and makes what training would leave in the folder that comes after --out.
echo "$@" >>"{log}"
[ "${{BROKEN:-none}}" != "$2" ] || exit 1
while [ $# -gt 0 ] && [ "$1" != --out ]; do shift; done
[ $# -gt 0 ] || exit 0
mkdir -p "$2/final"
[ -z "${{ADAPTER:-}}" ] || touch "$2/final/adapter_config.json"
"""
SERVE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


class Stages:
    """A virtual environment whose `mia` trains nothing, and a server of checkpoints that serves nothing."""

    def __init__(self, folder: Path) -> None:
        self.log, self.out = folder / "log", folder / "out"
        self.start = folder / "start"
        self.start.mkdir()
        (self.start / "adapter_config.json").touch()
        (folder / "bin").mkdir()
        for name, text in (("mia", MIA.format(log=self.log)), ("python", "#!/bin/sh\n")):
            (folder / "bin" / name).write_text(text, encoding="utf-8")
            (folder / "bin" / name).chmod(0o755)
        (folder / "serve.py").write_text(SERVE, encoding="utf-8")
        # A shell stands between, as in a script without `exec`.
        served = f'echo "serve $1" >>"{self.log}"\n"{sys.executable}" "{folder}/serve.py" "$@"\n:\n'
        (folder / "serve.sh").write_text(served, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {"MIA_VENV": str(folder), "MIA_PYTHON": sys.executable, "PORT": str(self.port)}
        self.serve = {"SERVE": f"bash {folder}/serve.sh"}

    def run(self, *words: str, script: str = "train_alternating", **more: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(SCRIPTS / f"{script}.sh"), *words, "--out", str(self.out)]
        environment = {**os.environ, **self.environment, **more}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=60)

    def told(self) -> list[str]:
        """What the commands were told since the last call, short of the folder."""
        lines = self.log.read_text(encoding="utf-8").replace(f"{self.out}/", "").splitlines()
        self.log.unlink()
        return [line.replace(str(self.start), "START") for line in lines]

    def listens(self) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


def test_tiny_stages_hand_their_adapters_on(stages: Stages) -> None:
    start = str(stages.start)
    words = ["--tiny", "--rounds", "2", "--executor", start, "--planner", start, "--rollout.rows", "8"]
    ended = stages.run(*words, ADAPTER="1", EXECUTOR="--grpo.max_steps 3")
    assert ended.returncode == 0, ended.stderr
    executor, planner = "train executor train/executor_tiny --out", "train planner train/planner_tiny --out"
    frozen = "--models.{0}.url embedded: --models.{0}.context 4096 --models.{0}.extra_body.adapter {1}"
    more = "--rollout.plans planner --grpo.max_steps 3 --rollout.rows 8"
    assert stages.told() == [
        f"{executor} 1-executor --policy.adapter START {frozen.format('planner', 'START')} {more}",
        f"{planner} 1-planner --policy.adapter START {frozen.format('executor', '1-executor/final')} --rollout.rows 8",
        f"{executor} 2-executor --policy.adapter 1-executor/final {frozen.format('planner', '1-planner/final')} {more}",
        f"{planner} 2-planner --policy.adapter 1-planner/final {frozen.format('executor', '2-executor/final')} "
        "--rollout.rows 8",
    ]
    assert ended.stdout.replace(str(stages.out), "OUT").splitlines() == [
        "executor  OUT/2-executor/final",
        "planner   OUT/2-planner/final",
    ]


def test_a_stage_that_failed_ends_all_and_is_gone_on_with(stages: Stages) -> None:
    (stages.out / "1-planner").mkdir(parents=True)
    assert stages.run("--tiny", BROKEN="planner").returncode != 0
    assert [line.split()[1] for line in stages.told()] == ["sft", "sft", "executor", "planner"]
    assert stages.run("--tiny").returncode == 0
    (again,) = stages.told()
    assert again.startswith("train planner train/planner_tiny --out 1-planner")
    assert "--resume" in again
    shutil.rmtree(stages.out / "1-executor")
    assert stages.run("--tiny").returncode == 0
    assert [line.split()[1] for line in stages.told()] == ["executor"]


def test_tiny_stages_without_a_start_begin_warm(stages: Stages) -> None:
    assert stages.run("--tiny", ADAPTER="1").returncode == 0
    told = stages.told()
    for role, line in zip(("executor", "planner"), told[:2], strict=True):
        words = f"--traces.role {role} --out warm-{role} --resume --traces.questions 96"
        assert line == f"train sft train/sft_tiny {words}"
    assert "--out 1-executor --policy.adapter warm-executor/final" in told[2]
    assert "adapter warm-planner/final" in told[2]
    assert "--out 1-planner --policy.adapter warm-planner/final" in told[3]


@pytest.mark.parametrize("role", ["executor", "planner"])
def test_a_tiny_role_begins_warm_unless_it_is_told_where(stages: Stages, role: str) -> None:
    script = f"train_{role}"
    assert stages.run("--tiny", "--rollout.rows", "8", script=script).returncode == 0
    warm, trained = stages.told()
    assert warm == f"train sft train/sft_tiny --traces.role {role} --out warm --resume --traces.questions 96"
    assert trained.startswith(f"train {role} train/{role}_tiny --rollout.rows 8")
    assert trained.endswith("--policy.adapter warm/final")
    start = str(stages.start)
    assert stages.run("--tiny", "--policy.adapter", start, script=script).returncode == 0
    assert stages.told() == [f"train {role} train/{role}_tiny --policy.adapter START --out {stages.out}"]
    assert stages.run(script=script).returncode == 0
    assert stages.told() == [f"train {role} train/{role} --out {stages.out}"]


def test_tiny_mia_is_trained_in_stages_and_packed(stages: Stages) -> None:
    (stages.out / "adapters" / "planner").mkdir(parents=True)  # packed already
    words = ("--executor.grpo.max_steps", "3")
    ended = stages.run(*words, script="train_tiny_mia", ADAPTER="1")
    assert ended.returncode == 0, ended.stderr
    told = stages.told()
    assert told[:2] == [
        "train sft train/sft_tiny --traces.role executor --out warm-executor --resume",
        "train sft train/sft_tiny --traces.role planner --out warm-planner --resume --traces.questions 256",
    ]
    assert "--out grpo/1-executor --policy.adapter warm-executor/final" in told[2]
    assert told[2].endswith("--grpo.max_steps 3")
    assert "--out grpo/1-planner --policy.adapter warm-planner/final" in told[3]
    packed = "--dtype bfloat16 --to adapters/executor"
    assert told[4:] == [f"model push grpo/1-executor/final mia/tiny-executor {packed}"]


def test_whole_checkpoints_are_served_to_the_other_role(stages: Stages) -> None:
    ended = stages.run("--rounds", "2", **stages.serve)
    assert ended.returncode == 0, ended.stderr
    at = f"url http://127.0.0.1:{stages.port}/v1"
    trained = [line for line in stages.told() if "2-" in line or line.startswith("serve")]
    assert trained == [
        "serve Qwen/Qwen3-8B",
        "serve 1-executor/final",
        "serve 1-planner/final",
        f"train executor train/executor --out 2-executor --policy.path 1-executor/final --models.planner.{at} "
        "--models.planner.model 1-planner/final --rollout.plans planner",
        "serve 2-executor/final",
        f"train planner train/planner --out 2-planner --policy.path 1-planner/final --models.executor.{at} "
        "--models.executor.model 2-executor/final",
    ]
    assert not stages.listens()


def test_a_server_ends_with_the_stage_that_failed(stages: Stages) -> None:
    assert stages.run(**stages.serve, BROKEN="executor").returncode != 0
    assert stages.told()[0] == "serve Qwen/Qwen3-8B"
    assert not stages.listens()


def test_a_server_that_cannot_start_is_named(stages: Stages) -> None:
    ended = stages.run(SERVE="false")
    assert ended.returncode == 1
    assert "SERVE ended before it answered" in ended.stderr


def test_a_port_that_is_taken_is_not_trained_against(stages: Stages) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", stages.port))
        other.listen()
        ended = stages.run(**stages.serve)
    assert ended.returncode == 1
    assert f"port {stages.port} is taken" in ended.stderr
    assert not stages.log.exists()


@pytest.mark.parametrize("role", ["executor", "planner"])
def test_a_start_that_is_not_there_is_refused(stages: Stages, role: str) -> None:
    ended = stages.run("--tiny", f"--{role}", "nowhere")
    assert ended.returncode == 1
    assert "nowhere" in ended.stderr
    assert not stages.log.exists()
