"""Every mistake in a configuration is named with its file, line, key, what was found and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.config import ConfigError, InvalidConfig, load, loads

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
