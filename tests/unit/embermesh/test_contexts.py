"""Which gateway a command talks to, and with whose token."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from embermesh import contexts
from embermesh.contexts import Context, UserConfig
from embermesh.session import Choice, Options, choose
from embermesh.settings import DEFAULT_URL, UserSettings
from services.kit.errors import Conflict, InvalidInput, NotFound

LOCAL = "http://127.0.0.1:9999"
KNOWN = UserConfig(
    current="prod",
    contexts={
        "prod": Context(url="https://prod:1", token_file="prod.token"),
        "lab": Context(url="http://lab:1"),
    },
)
NONE = UserConfig()
Env = UserSettings


@pytest.mark.parametrize(
    ("options", "own", "known", "local", "url", "token", "token_file"),
    [
        # Nothing said: the default; then what runs here; then the current context.
        (Options(), Env(), NONE, None, DEFAULT_URL, "", ""),
        (Options(), Env(), NONE, LOCAL, LOCAL, "", ""),
        (Options(), Env(), KNOWN, LOCAL, "https://prod:1", "", "prod.token"),
        (Options(), Env(token="t"), NONE, LOCAL, LOCAL, "t", ""),
        # The environment is nearer than a context: URL, name of one, token.
        (Options(), Env(url="http://e:1"), KNOWN, LOCAL, "http://e:1", "", ""),
        (Options(), Env(context="lab"), KNOWN, LOCAL, "http://lab:1", "", ""),
        (Options(), Env(token="t"), KNOWN, LOCAL, "https://prod:1", "t", "prod.token"),
        # Options are nearest; a token of a context goes nowhere else.
        (Options(url="http://o:1"), Env(url="http://e:1"), KNOWN, LOCAL, "http://o:1", "", ""),
        (Options(url="http://o:1"), Env(token="t"), KNOWN, LOCAL, "http://o:1", "t", ""),
        (Options(context="lab"), Env(url="http://e:1"), KNOWN, LOCAL, "http://lab:1", "", ""),
        (Options(context="lab"), Env(token="t"), KNOWN, LOCAL, "http://lab:1", "t", ""),
        (Options(context="prod"), Env(token="t"), KNOWN, None, "https://prod:1", "", "prod.token"),
        (Options(token_file="f"), Env(token="t"), KNOWN, None, "https://prod:1", "", "f"),
        (Options(url="http://o:1", token_file="f"), Env(), KNOWN, None, "http://o:1", "", "f"),
    ],
)
def test_the_nearest_word_wins(
    options: Options,
    own: UserSettings,
    known: UserConfig,
    local: str | None,
    url: str,
    token: str,
    token_file: str,
) -> None:
    found = choose(options, own, known, local)
    assert (found.url, found.token, found.token_file) == (url, token, token_file)


def test_two_gateways_at_once_are_refused() -> None:
    with pytest.raises(InvalidInput, match="--url and --context"):
        Options(url="http://o:1", context="lab")
    with pytest.raises(InvalidInput, match="EMBERMESH_URL and EMBERMESH_CONTEXT"):
        choose(Options(), UserSettings(url="http://e:1", context="lab"), KNOWN, None)
    for options, own in (
        (Options(context="x"), UserSettings()),
        (Options(), UserSettings(context="x")),
    ):
        with pytest.raises(NotFound, match="no context 'x'; known: lab, prod"):
            choose(options, own, KNOWN, None)


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    for mode in (0o644, 0o640, 0o620, 0o601):
        file.chmod(mode)
        with pytest.raises(InvalidInput, match=f"mode {mode:04o}.*chmod 600") as refused:
            Choice("http://x", "", token_file=str(file)).bearer()
        assert "secret" not in str(refused.value)
    for mode in (0o600, 0o400):
        file.chmod(mode)
        assert Choice("http://x", "", token_file=str(file)).bearer() == "secret"
    file.chmod(0o600)
    file.write_text(" \n")
    with pytest.raises(InvalidInput, match="is empty"):
        contexts.read_token(str(file))
    with pytest.raises(InvalidInput, match="gone"):
        contexts.read_token(str(tmp_path / "gone"))


def test_the_file_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    below_home = tmp_path / ".config" / "embermesh" / "config.yaml"
    assert contexts.config_path({}) == below_home
    assert contexts.config_path({"XDG_CONFIG_HOME": "relative"}) == below_home
    elsewhere = contexts.config_path({"XDG_CONFIG_HOME": "/etc/xdg"})
    assert elsewhere == Path("/etc/xdg/embermesh/config.yaml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "x"))
    assert contexts.config_path() == tmp_path / "x" / "embermesh" / "config.yaml"


def test_what_is_saved_is_loaded_and_belongs_to_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.yaml"
    assert contexts.load(path) == NONE
    contexts.save(path, KNOWN)
    assert contexts.load(path) == KNOWN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["config.yaml"]
    contexts.save(path, NONE)
    assert contexts.load(path) == NONE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("contexts: [", "can't read"),
        ("contexts: {a: {url: 'ftp://x'}}", "contexts.a.url"),
        ("contexts: {a: {url: 'https://user:secret@x'}}", "contexts.a.url"),
        ("contexts: {a: {url: 'http://x', token: secret}}", "contexts.a.token"),
        ("contexts: {'a b': {url: 'http://x'}}", "contexts.a b"),
        ("current: b\ncontexts: {a: {url: 'http://x'}}", "no context 'b'; known: a"),
        ("- a", "config.yaml"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        contexts.load(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_contexts_come_and_go() -> None:
    one = NONE.with_added("a", Context(url="http://a"), use=True)
    two = one.with_added("b", Context(url="http://b"), use=False)
    assert (two.current, sorted(two.contexts)) == ("a", ["a", "b"])
    assert two.using("b").current == "b"
    assert two.using(None).current is None
    assert two.without("a").current is None
    assert two.without("b").current == "a"
    with pytest.raises(Conflict, match="'a' is there already"):
        two.with_added("a", Context(url="http://c"), use=False)
    with pytest.raises(InvalidInput, match="contexts"):
        two.with_added("no blanks", Context(url="http://c"), use=False)
    for change in (two.using, two.without):
        with pytest.raises(NotFound, match="known: a, b"):
            change("c")
