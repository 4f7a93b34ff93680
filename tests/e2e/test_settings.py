"""Settings as a daemon has them: file, environment, flag; and what of them the doctor shows."""

from __future__ import annotations

from tests.e2e.conftest import Homes
from tests.e2e.homes import Shell


def test_what_is_set_is_in_force_and_a_flag_goes_before_it(homes: Homes) -> None:
    home = homes()
    shell = Shell(home, "1")
    for name, value in (("max_tokens", "7"), ("temperature", "0"), ("dtype", "fp32"),
                        ("keep_alive", "17m"), ("context_length", "500")):  # fmt: skip
        shell("config", "set", name, value)
    first, again = shell.ask("hello"), shell.ask("hello")
    assert first["usage"]["output_tokens"] == 7
    assert first["text"] == again["text"]
    assert first["dtype"] == "fp32"
    assert shell.ask("hello", "--max-tokens", "3")["usage"]["output_tokens"] == 3
    assert shell.ask("hello", "-o", "max_tokens=2")["usage"]["output_tokens"] == 2
    (loaded,) = shell.json("models", "ps")["models"]
    assert loaded["context"] == 500
    told = shell("config", "set", "max_tokens", "9").err
    assert "the running daemon goes on with what it has: radchat daemon restart" in told
    assert shell.ask("hello")["usage"]["output_tokens"] == 7
    shell("daemon", "restart")
    assert shell.ask("hello")["usage"]["output_tokens"] == 9
    doctor = shell.json("doctor")
    file = str(home.places.config_file)
    assert doctor["settings"]["max_tokens"] == doctor["daemon"]["max_tokens"] == f"9 ({file})"
    assert doctor["daemon"]["keep_alive"] == f"1020 ({file})"
    assert not doctor["broken"]
    assert shell("doctor", RADCHAT_KEEP_ALIVE="soon", code=1).out.count("broken  ") == 1


def test_a_setting_that_is_wrong_keeps_no_daemon_from_being_stopped(homes: Homes) -> None:
    """What would start one says exit 52 and the line; stop and doctor work."""
    home = homes()
    shell = Shell(home, "1")
    shell("daemon", "start")
    home.places.config_file.parent.mkdir(parents=True, exist_ok=True)
    home.places.config_file.write_text('\nkeep_alive = "soon"\n')
    shell("daemon", "stop")
    told = shell("ask", "hello", code=52).err
    assert f"keep_alive = 'soon' (from {home.places.config_file}, line 2)" in told
    assert shell.json("ask", "hello", code=52)["error"]["code"] == "config_invalid"
    assert not home.is_up
    shell("config", "unset", "keep_alive")
    assert shell("ask", "hello", "--max-tokens", "2").code == 0
