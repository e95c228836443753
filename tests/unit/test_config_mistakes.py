"""Every mistake in a configuration is named with its file, line, key, what was found and what is allowed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from monitor.config import ConfigError, InvalidConfig, load, loads
from monitor.config.files import read_bounded

GOLDEN = Path(__file__).parents[1] / "golden" / "config"
BAD_FILES = sorted(path.stem for path in GOLDEN.glob("*.yaml"))
KEY = "sk-from-the-environment-0123456789"
ENVIRON = {"OPENAI_API_KEY": KEY}


def mistakes_in(name: str) -> str:
    """The message for a golden file, with its path shortened to `bad.yaml`."""
    path = GOLDEN / f"{name}.yaml"
    with pytest.raises(InvalidConfig) as caught:
        load(path, ENVIRON)
    return str(caught.value).replace(str(path), "bad.yaml")


@pytest.mark.parametrize("name", BAD_FILES)
def test_message(name: str) -> None:
    """Each bad file gets exactly the message beside it, and no message repeats a secret."""
    message = mistakes_in(name)
    assert message + "\n" == (GOLDEN / f"{name}.txt").read_text()
    assert KEY not in message
    assert "planted" not in message.lower()


def test_every_bad_file_has_its_message() -> None:
    """No golden file stands alone."""
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == BAD_FILES
    assert len(BAD_FILES) > 60


def test_all_at_once_in_file_order() -> None:
    """One reading names all mistakes, ordered by line."""
    with pytest.raises(InvalidConfig) as caught:
        load(GOLDEN / "several_at_once.yaml", ENVIRON)
    lines = [mistake.line for mistake in caught.value.mistakes]
    assert lines == [1, 6, 10, 11, 12, 13, 13]


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is a ConfigError with one sentence, and so is a directory."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: found a file that cannot be read \(no such file"):
        load(tmp_path / "nowhere.yaml", {})
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path, {})


def test_a_pipe_is_read_and_waited_for_only_so_long(tmp_path: Path) -> None:
    """What a pipe gives late is read whole; one that gives nothing is a file that cannot be read, in bounded time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match="nothing comes"):
        read_bounded(pipe, 100, patience_seconds=0.05)
    with pytest.raises(ConfigError, match=r"pipe: found a file that cannot be read \(nothing comes from it\)"):
        load(pipe, {})

    def write() -> None:
        with pipe.open("wb") as writer:
            for _ in range(5):
                writer.write(b"12345" * 5_000)  # more than the pipe holds
                writer.flush()
                time.sleep(0.02)

    writing = threading.Thread(target=write)
    writing.start()
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # the writer waits for a reader
    assert read_bounded(pipe, 1_000_000, patience_seconds=30) == b"12345" * 25_000
    os.close(held)
    writing.join()


def test_a_secret_from_a_pipe_that_gives_nothing_is_missing(tmp_path: Path) -> None:
    """No file that a configuration names can stop its reading."""
    os.mkfifo(tmp_path / "key")
    content = (GOLDEN / "target_ca_file.yaml").read_text().replace("ca_file: no-such.pem", "")
    (tmp_path / "c.yaml").write_text(content.replace("api_key: ${OPENAI_API_KEY}", "api_key_file: key"))
    with pytest.raises(ConfigError, match=r'"key", which cannot be read \(nothing comes from it\)'):
        load(tmp_path / "c.yaml", {})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x" * 1_000_001, "at most 1,000,000 bytes"),
        (b"a: b\nc: \xff\n", "bad.yaml:2: found a byte that is no UTF-8 (0xff); allowed: UTF-8 text"),
        (b"a: b\nc: \x07\n", "bad.yaml:2: found a control character (U+0007); allowed: printable text"),
    ],
)
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes, message: str) -> None:
    """Oversized and undecodable files are refused in words."""
    path = tmp_path / "bad.yaml"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert message in str(caught.value)


def test_a_flood_of_mistakes_is_cut() -> None:
    """Thousands of wrong keys cost little and give a message that a person can read."""
    text = "targets:\n  one:\n" + "".join(f"    wrong{number}: 1\n" for number in range(20_000)) + "probes: {}\n"
    with pytest.raises(InvalidConfig) as caught:
        loads(text, {})
    assert str(caught.value).startswith("configuration: found more than 200 mistakes")
    assert len(caught.value.mistakes) == 201


@pytest.mark.parametrize("text", ["[" * 400_000, "{a: " * 200_000, "- " * 400_000, "? " * 100_000, "a: &a [*a]\n"])
def test_nesting_is_bounded(text: str) -> None:
    """Text that nests without end, or into itself, is refused in words."""
    with pytest.raises(InvalidConfig):
        loads(text, {})
