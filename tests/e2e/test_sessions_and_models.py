"""Sessions as a whole, chats that leave no trace, and what a changed setting costs."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from radchat.chat.files import MAX_BYTES
from radchat.cli.sessions_exchange import given
from radchat.errors import InvalidInput
from tests.e2e.conftest import EXACT, Homes
from tests.e2e.homes import Home, Shell, until
from tests.e2e.kv_disk import files
from tests.e2e.tiny_models import converted


def test_sessions_are_listed_shown_renamed_and_removed(shell: Shell, home: Home) -> None:
    one = shell.ask("the first of them", "--new-session", "alpha")
    two = shell.ask("the second")
    rows = shell.json("sessions", "ls")["sessions"]
    assert [row["id"] for row in rows] == [two["session"], one["session"]]  # last used first
    assert [row["current"] for row in rows] == [True, False]
    assert rows[1]["name"] == "alpha"
    assert rows[0]["name"] == "the-second"
    assert {row["messages"] for row in rows} == {2}
    shell("sessions", "rename", "alpha", "beta")
    shell("sessions", "rename", "gamma")
    assert {row["name"] for row in shell.json("sessions", "ls")["sessions"]} == {"beta", "gamma"}
    assert shell("sessions", "rename", "beta", code=2).err
    shown = shell.json("sessions", "show", "beta")
    assert (shown["id"], shown["messages"]) == (one["session"], 2)
    assert "beta" in shell("sessions", "show", "beta").out
    assert "alpha" in shell("sessions", "show", "alpha", code=66).err
    shell("sessions", "rm", "beta", "nothing", "-y", code=66)
    shell("sessions", "rm", "gamma", code=2)  # nobody to ask
    for row in shell.json("sessions", "ls")["sessions"]:
        shell("sessions", "rm", row["id"], "-y")
    assert shell.json("sessions", "ls")["sessions"] == []
    assert "no session" in shell("log", code=66).err
    database = home.places.database.read_bytes()
    wal = home.places.database.with_name("radchat.db-wal")
    database += wal.read_bytes() if wal.exists() else b""
    assert b"the first of them" not in database
    assert b"the second" not in database


def test_the_current_session_is_the_terminals_then_the_folders(shell: Shell, home: Home) -> None:
    here = shell.ask("from the first terminal", "--new-session", "here")
    other = Shell(home, "2", EXACT)
    other.ask("from the second")
    assert shell.json("sessions", "show")["id"] == here["session"]
    chosen = shell.json("sessions", "show", RADCHAT_SESSION="from-the-second")
    assert chosen["id"] != here["session"]
    assert shell.json("--session", "here", "log")["session"] == here["session"]
    assert shell.say("and on")["session"] == here["session"]  # a flag that looks makes no current
    assert "no session" in shell("log", "--session", "zzz", code=66).err.replace("not", "no")


def test_a_session_goes_from_one_home_into_another_with_its_ids(shell: Shell, homes: Homes) -> None:
    first = shell.ask("a talk that moves house")
    second = shell.say("and comes along")
    shell.json("retry", *EXACT)
    written = shell("sessions", "export", "--format", "jsonl")
    assert len(written.out.splitlines()) == 1 + 5
    there = Shell(homes(), "1", EXACT)
    there("sessions", "import", "-", stdin=written.out)
    assert there.json("sessions", "show")["id"] == first["session"]
    assert there.home.ids(second["message"]) == shell.home.ids(second["message"])
    assert there.json("sessions", "verify")["ok"]
    assert there.texts() == shell.texts()
    goes_on = there.say("at home again?")
    told = there.home.prompt_ids(goes_on["message"])
    own = shell.home.prompt_ids(shell.say("at home again?")["message"])
    assert told == own
    name = there.json("sessions", "show")["name"]
    assert there("sessions", "search", "house", "-l").out == f"{name}\n"
    there("prune", "-y")
    assert len(there.tree()["messages"]) == 6
    assert len(shell.tree()["messages"]) == 7


TALK = '[{"role": "user", "content": "hello"}]'


def test_an_import_reads_pipes_itself_and_the_daemon_reads_files(
    shell: Shell, tmp_path: Path
) -> None:
    """``import <(command)`` and ``/dev/stdin`` name what only the command has open."""
    pipe, file = tmp_path / "pipe.json", tmp_path / "file.json"
    os.mkfifo(pipe)
    file.write_text(TALK)
    writing = threading.Thread(target=pipe.write_text, args=(TALK,), daemon=True)
    writing.start()
    names = [str(pipe), "/dev/stdin", str(file)]
    rows = shell.json("sessions", "import", *names, stdin=TALK)["sessions"]
    writing.join(30)
    assert [row["file"] for row in rows] == ["pipe.json", "stdin", "file.json"]
    assert "cannot read" in shell("sessions", "import", str(tmp_path / "none"), code=42).err


def test_an_import_of_an_endless_pipe_ends(tmp_path: Path) -> None:
    with (tmp_path / "long").open("w+b") as file:
        file.truncate(MAX_BYTES + 1)
        with pytest.raises(InvalidInput, match="longer than 32 MiB: write it to a file"):
            given(f"/dev/fd/{file.fileno()}")


def traces(folder: Path, needles: list[bytes]) -> list[str]:
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]


def test_an_ephemeral_chat_leaves_no_trace_as_text_or_ids(shell: Shell, home: Home) -> None:
    """Promise 8: neither while it runs nor after a stop."""
    kept = shell.ask("an open word: walnut")
    secret = "quince" * 4
    first = shell.ask(f"my secret is {secret}", "--ephemeral", "--max-tokens", "40")
    second = shell.say(f"again {secret}", "--ephemeral", "--max-tokens", "20")
    assert second["session"] == first["session"]
    assert shell.ask("on", "-r", first["session"])["session"] == first["session"]
    refused = shell("ask", "on", "--ephemeral", "-r", kept["session"], *EXACT, code=42)
    assert "kept on disk" in refused.err
    assert second["usage"]["cached_input_tokens"] > 40
    rows = {row["id"]: row for row in shell.json("sessions", "ls")["sessions"]}
    assert rows[first["session"]]["ephemeral"] is True
    assert shell.json("sessions", "show")["id"] == kept["session"]  # nor is it the current one
    with shell.stream(text=f"cut {secret}", ephemeral=True, dtype="fp32") as events:
        until(events, "delta", 5)
    walnut = [ord(c) for c in "walnut"]
    assert walnut
    ids = [home.ids(kept["message"])[20:26]]
    packed = b"".join(number.to_bytes(4, "little") for number in ids[0])
    needles = [secret.encode(), first["text"].encode(), second["text"].encode()]
    data = home.places.database.parent
    assert traces(data, [b"walnut"])  # these needles would be found
    assert traces(data, [packed])
    from radchat.engine.tokenizer import Tokenizer

    tokenizer = Tokenizer(next(home.places.models.glob("tiny-*")))
    secret_ids = tokenizer.encode_text(secret)
    needles.append(b"".join(number.to_bytes(4, "little") for number in secret_ids))
    assert traces(home.root / "h", needles) == []
    shell("daemon", "stop")
    assert traces(home.root / "h", needles) == []
    assert first["session"] not in {row["id"] for row in shell.json("sessions", "ls")["sessions"]}
    shell("log", "--session", first["session"], code=66)


def test_another_system_prompt_says_first_what_it_recomputes(terminal: Shell) -> None:
    terminal.ask("hello there, this is a talk. " * 12, "-s", "Be kind.", "--max-tokens", "20")
    long = terminal.say("and more of it. " * 12, "--max-tokens", "20")
    assert long["cache"]["device"] > 300
    done = terminal(
        "ask", "-c", "now?", "-s", "Be short.", *EXACT, "--output-format", "stream-json"
    )
    lines = [json.loads(line) for line in done.out.splitlines()]
    kinds = [line["type"] for line in lines]
    warning = lines[kinds.index("warning")]
    assert kinds.index("warning") < kinds.index("init")  # before it is done
    result = lines[-1]["branches"][0]
    assert "another system prompt" in warning["text"]
    assert "recomputes" in warning["text"]
    told = warning["tokens"]
    assert abs(told - result["cache"]["computed"]) <= len("now?") + 60
    assert f"{told:,}" in warning["text"]
    said = terminal.texts()
    assert said[0] == ("system", "Be short.")
    assert said[-2] == ("user", "now?")
    assert sum(role == "system" for role, _ in said) == 1
    same = terminal("ask", "-c", "again", "-s", "Be short.", *EXACT)
    assert "recomputes" not in same.err


def test_a_small_change_is_made_without_a_word(terminal: Shell) -> None:
    terminal.ask("hi", "-s", "Be kind.")
    assert terminal("ask", "-c", "now?", "-s", "Be short.", *EXACT).err.count("recomputes") == 0


def test_kv_that_was_forgotten_is_computed_again_and_that_is_said(terminal: Shell) -> None:
    terminal.ask("a long text. " * 40)
    terminal("cache", "clear", "-y")
    done = terminal("ask", "-c", "and?", *EXACT)
    assert "this recomputes" in done.err
    assert "no longer cached" in done.err


def test_an_unknown_model_is_66_with_the_nearest_name(terminal: Shell) -> None:
    count = terminal.num_sessions()
    for flags in (("-m", "tinny"), ("-m", "/no/such/folder"), ("-m", "smollm2-135m")):
        refused = terminal("ask", "hello", *flags, "--json", code=66)
        assert refused.json["error"]["code"] == "not_found"
    assert "tiny" in terminal("ask", "hello", "-m", "tinny", code=66).err
    assert "radchat models pull" in terminal("ask", "hello", "-m", "smollm2-135m", code=66).err
    assert terminal.num_sessions() == count
    terminal.ask("hello")
    terminal("models", "load", "tinny", code=66)
    terminal("models", "stop", "tinny", code=66)


def test_without_any_model_a_question_says_what_to_type(homes: Homes) -> None:
    shell = Shell(homes({}), "1", EXACT)
    refused = shell("ask", "hello", code=66)
    assert "radchat models pull smollm2-135m" in refused.err


def _harm(bad: Path, harm: str) -> None:
    """A converted folder, damaged in one way; radchat.json says what is there now."""
    about = json.loads((bad / "radchat.json").read_text()) | {"name": bad.name[:-9]}
    weights = (bad / "model.safetensors").read_bytes()
    if harm == "cut short":
        (bad / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    elif harm == "other bytes":
        (bad / "model.safetensors").write_bytes(b"\xff" * 64 + weights[64:])
    elif harm == "no config":
        (bad / "config.json").unlink()
    else:
        config = json.loads((bad / "config.json").read_text()) | {"num_attention_heads": "four"}
        (bad / "config.json").write_text(json.dumps(config))
        about["files"]["config.json"] = (bad / "config.json").stat().st_size
    (bad / "radchat.json").write_text(json.dumps(about))


def test_broken_weights_are_told_and_the_daemon_lives(
    homes: Homes, tiny: Path, tmp_path: Path
) -> None:
    models = {"tiny": tiny}
    for number, harm in enumerate(("cut short", "other bytes", "no config", "not a number")):
        name = f"bad{number}"
        models[name] = tmp_path / f"{name}-00000000"
        shutil.copytree(tiny, models[name])
        _harm(models[name], harm)
    home = homes(models)
    shell = Shell(home, "1", EXACT)
    shell("daemon", "start")
    pid = home.pid
    for name in models:
        if name == "tiny":
            continue
        refused = shell("ask", "hello", "-m", name, code=1)
        assert name in refused.err
        assert "Traceback" not in refused.err
        assert len(refused.err.strip().splitlines()) == 1
        assert shell.num_sessions() == 0
    assert shell.ask("hello", "-m", "tiny")["usage"]["output_tokens"] == 8
    assert home.pid == pid
    home.assert_balanced()


def test_a_model_removed_since_is_told_by_its_name(homes: Homes, other: Path, tiny: Path) -> None:
    home = homes({"tiny": tiny, "other": other})
    shell = Shell(home, "1", EXACT)
    shell.ask("hello", "-m", "other", "--max-tokens", "2")
    shell.run("cache.save")
    assert files(home)
    assert " of KV" in shell("models", "rm", "other", "-y").err
    shell("models", "stop")
    assert files(home) == []
    refused = shell("ask", "-c", "and now?", *EXACT, code=66)
    assert "other" in refused.err
    assert shell.say("and now?", "-m", "tiny")["model"] == "tiny"


def test_a_template_that_refuses_the_messages_is_told_and_nothing_stays(
    homes: Homes, tmp_path: Path
) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('no system prompt here') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    strict = converted(tmp_path / "models", "strict", template=template)
    shell = Shell(homes({"strict": strict}), "1", EXACT)
    shell.ask("hello")
    refused = shell("ask", "hi", "-s", "be kind", *EXACT, code=42)
    assert "no system prompt here" in refused.err
    assert len(shell.json("sessions", "ls")["sessions"]) == 1
    assert shell.say("and on")["usage"]["output_tokens"] == 8


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="says what a process has loaded")
def test_what_grammars_need_is_loaded_with_the_first(shell: Shell, home: Home) -> None:
    shell.ask("a free answer")
    maps = Path(f"/proc/{home.pid}/maps")
    assert "/torch/" in maps.read_text()
    assert "/llguidance/" not in maps.read_text()
    assert shell.ask("good or bad?", "--choice", "good", "--choice", "bad")["text"] in (
        "good",
        "bad",
    )
    assert "/llguidance/" in maps.read_text()
