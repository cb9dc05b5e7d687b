"""Media by hash: stored once, whole or not at all, read back checked, published with their rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data.errors import ConfigError, RecordError, StoreError
from data.media import MediaStore, MediaTooLargeError, guess_type, make_part
from data.messages import Part, PartType

PNG = b"\x89PNG\r\n\x1a\n123"


def test_equal_bytes_are_one_file_and_read_back(tmp_path: Path) -> None:
    store = MediaStore(tmp_path / "media")
    first, again, other = store.put(PNG, "image/png"), store.put(PNG, "image/x-other"), store.put(b"x", "a/b")
    assert first.media_sha256 == again.media_sha256 != other.media_sha256
    assert sorted(path.name for path in store.root.iterdir()) == sorted(
        [f"{first.media_sha256}.png", f"{other.media_sha256}.bin"]
    )
    assert store.read(first.media_sha256) == PNG


@pytest.mark.parametrize(
    ("media_type", "kind"),
    [
        ("image/png", PartType.IMAGE),
        ("video/mp4", PartType.VIDEO),
        ("audio/wav", PartType.AUDIO),
        ("Text/CSV; charset=utf-8", PartType.FILE),
    ],
)
def test_the_kind_follows_the_media_type(media_type: str, kind: PartType) -> None:
    assert make_part(PNG, media_type).type is kind


def test_limits_and_wrong_names(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, max_bytes=3)
    with pytest.raises(
        MediaTooLargeError, match=r"image of 4 bytes \(image/png\) is above the limit of 3 bytes"
    ):
        store.put(b"1234", "image/png")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordError, match="is no media type"):
        store.put(b"1", "../png")
    with pytest.raises(RecordError, match="is no SHA-256"):
        store.read("../../etc/passwd")
    with pytest.raises(ConfigError, match="keep the folder with its run"):
        store.read("0" * 64)


def test_damage_is_noticed_and_a_crash_leaves_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MediaStore(tmp_path)
    part = store.put(PNG, "image/png")
    (tmp_path / f"{part.media_sha256}.png").write_bytes(b"other")
    with pytest.raises(StoreError, match="is damaged"):
        store.read(part.media_sha256)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="no space left"):
        store.put(b"new", "image/png")
    assert [path.name for path in tmp_path.iterdir()] == [f"{part.media_sha256}.png"]


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (PNG, "", "image/png"),
        (b"\xff\xd8\xff\xe0", "", "image/jpeg"),
        (b"RIFF1234WAVE", "", "audio/wav"),
        (b"\0\0\0\x18ftypmp42", "", "video/mp4"),
        (b"a,b\n", "table.csv", "text/csv"),
        (b"?", "", "application/octet-stream"),
    ],
)
def test_types_are_recognised(data: bytes, name: str, expected: str) -> None:
    assert guess_type(data, name) == expected


def test_text_only_readers_see_a_placeholder() -> None:
    picture = Part(type=PartType.IMAGE, media_sha256="ab" * 32, media_type="image/png")
    assert picture.shown == "[image abababababab image/png]"
    assert picture.model_copy(update={"text": "a map"}).shown == "a map [image abababababab image/png]"
    assert Part(text="words").shown == "words"
