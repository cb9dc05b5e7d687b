"""What tools may return: text, JSON, bytes, paths, images, mixtures; media by hash, never dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from data.media import MediaStore
from data.messages import PartType, ToolResult, ToolStatus, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import GoldScript
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import Media, ToolLimits, ToolResponse, tool
from pipeline.errors import ConfigError
from tests.pipeline.environments.conftest import Run

PNG = b"\x89PNG\r\n\x1a\n123"


class FakeImage:
    """What `PIL.Image.Image` is to us: a class of that name whose objects can be saved."""

    def save(self, file: Any, format: str) -> None:
        file.write(PNG + format.encode())


FakeImage.__module__, FakeImage.__name__ = "PIL.Image", "Image"


class CameraSession(ToolSession):
    @tool
    def give(self, kind: str) -> Any:
        """Give something."""
        path = Path(self.task.state_value()["folder"]) / "clip.mp4"
        path.write_bytes(b"video")
        return {
            "text": "words",
            "json": [1, {"a": None}],
            "bytes": PNG,
            "path": path,
            "image": FakeImage(),
            "mixed": ["before ", Media(b"RIFF0000WAVE"), " after", {"n": 1}],
            "response": ToolResponse(text="look", media=(PNG, path), reward=1.0),
            "long": ["x" * 50, PNG],
            "absent": path.with_name("absent.png"),
            "nothing": None,
        }[kind]

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        return {"success": 1.0}


class Camera(ToolEnvironment):
    name, splits, session = "camera", ("train",), CameraSession

    def tasks(self, split: str) -> Iterator[Task]:
        raise NotImplementedError

    def gold(self, task: Task) -> GoldScript:
        return ListedAgent([])


@pytest.fixture
def camera(tmp_path: Path) -> Camera:
    environment = Camera(limits=ToolLimits(max_tool_response_length=20))
    environment.media = MediaStore(tmp_path / "media", max_bytes=100)
    return environment


async def give(camera: Camera, kind: str, folder: Path) -> ToolResult:
    task = Task(
        environment="camera",
        split="train",
        template="t",
        prompt=(user("Go."),),
        state=f'{{"folder":"{folder}"}}',
        verifier="camera/1",
    )
    async with await camera.open(task) as session:
        return await session.call("give", {"kind": kind}, "c")


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("bytes", [PartType.IMAGE]),
        ("path", [PartType.VIDEO]),
        ("image", [PartType.IMAGE]),
        ("mixed", [PartType.TEXT, PartType.AUDIO, PartType.TEXT, PartType.TEXT]),
        ("response", [PartType.TEXT, PartType.IMAGE, PartType.VIDEO]),
        ("text", [PartType.TEXT]),
        ("json", [PartType.TEXT]),
        ("nothing", [PartType.TEXT]),
    ],
)
def test_parts_in_order_and_media_in_the_store(
    run: Run, camera: Camera, tmp_path: Path, kind: str, types: list[PartType]
) -> None:
    result = run(give(camera, kind, tmp_path))
    assert result.status is ToolStatus.OK
    assert [part.type for part in result.parts] == types
    assert camera.media is not None
    for part in result.parts:
        if part.type is not PartType.TEXT:
            assert camera.media.read(part.media_sha256)
            assert f"[{part.type} {part.media_sha256[:12]} {part.media_type}]" in result.text


def test_cutting_text_keeps_media(run: Run, camera: Camera, tmp_path: Path) -> None:
    result = run(give(camera, "long", tmp_path))
    assert result.truncated and result.parts[0].text == "x" * 17 + "..."
    assert result.parts[1].type is PartType.IMAGE


def test_too_large_is_an_observation_and_a_lost_file_is_not(run: Run, camera: Camera, tmp_path: Path) -> None:
    camera.media = MediaStore(tmp_path / "media", max_bytes=3)
    result = run(give(camera, "bytes", tmp_path))
    assert result.status is ToolStatus.TOOL_ERROR and "above the limit of 3 bytes" in result.text
    assert run(give(camera, "absent", tmp_path)).status is ToolStatus.INFRA_ERROR


def test_without_a_store_media_stop_the_run(run: Run, camera: Camera, tmp_path: Path) -> None:
    camera.media = None
    with pytest.raises(ConfigError, match=r"a tool returned image/png, and there is nowhere to keep it"):
        run(give(camera, "bytes", tmp_path))
