"""Files are seen to change: by content, by replacement, by going away; those that are named only later as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.cli.watch import changes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def seen(paths: list[Path], change: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether a change is seen."""
    asked: list[int] = []

    def named() -> list[Path]:
        asked.append(len(paths))
        return list(paths)

    watching = changes(named, poll_seconds=0.02, settle_seconds=0.02, gone_seconds=0.05)
    look = asyncio.ensure_future(anext(watching))  # type: ignore[arg-type]
    while len(asked) < 2:  # noqa: ASYNC110  # asked again: by then it knows how the files were
        await asyncio.sleep(0.01)
    change()
    done, _ = await asyncio.wait({look}, timeout=seconds)
    look.cancel()
    await asyncio.gather(look, return_exceptions=True)
    return bool(done)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("own", "key")]
    for one in made:
        one.write_text("as it was")
    return made


@pytest.mark.parametrize("which", [0, 1])
async def test_every_watched_file_counts(files: list[Path], which: int) -> None:
    """The first as well as those that it names."""
    assert await seen(files, lambda: files[which].write_text("something else"))


async def test_a_file_that_is_replaced_or_goes(files: list[Path]) -> None:
    """Another file under the same name, and none."""
    other = files[0].with_name("fresh")
    other.write_text("as it was")
    assert await seen(files, lambda: other.replace(files[1]))
    assert await seen(files, files[1].unlink)


async def test_a_change_is_seen_though_other_files_are_named_at_that_moment(files: list[Path]) -> None:
    """One that is watched before and after is compared with how it was before."""
    more = files[0].with_name("more")
    more.write_text("here before it is watched")

    def change() -> None:
        files[0].write_text("something else")
        files.append(more)

    assert await seen(files, change)


async def test_nothing_is_seen_where_nothing_changed(files: list[Path]) -> None:
    """Also when more files are watched from now on: they are known as they are then."""
    more = files[0].with_name("more")
    more.write_text("here before it is watched")
    assert not await seen(files, lambda: None, 0.5)
    assert not await seen(files, lambda: files.append(more), 0.5)
