"""Which model a turn uses, and the offer of the first start.

-m, then the session's own (the daemon knows it), then RADCHAT_MODEL and config.toml, then the
default and the last used, then the only one here, then the offer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from radchat.chat.footer import size
from radchat.cli import gpu_seen
from radchat.cli.common import Cli, is_terminal, table
from radchat.errors import InvalidInput, NotFound, Unreachable

if TYPE_CHECKING:
    from radchat.models.child import Progress, Step
    from radchat.models.fit import Suggestion
    from radchat.models.registry import ModelEntry


def choose(cli: Cli, asked: str | None, *, is_new: bool, yes: bool = False) -> str | None:
    """The model to name in the call; None leaves an existing session its own.

    A path that has not been converted yet is, first. Raises NotFound (66), with the command to
    type, when there is no model and nobody to ask.
    """
    if cli.engine or (is_new and not asked and cli.config.engine):
        return behind(cli, cli.engine or str(cli.config.engine), asked).name
    if not asked and not is_new:
        return None
    if cli.daemon:  # what it can load is its own business
        from radchat.models import registry

        return asked or cli.config.model or registry.get_default(cli.places)
    return model_or_offer(cli, asked, yes=yes).name


def behind(cli: Cli, url: str, tokenizer: str | None, *, name: str | None = None) -> ModelEntry:
    """What another program's engine serves, known here from now on as a model."""
    from radchat.models.remote import pull_remote

    try:
        return pull_remote(
            cli.places,
            url,
            tokenizer,
            name=name,
            progress=_telling(cli),
            key=cli.config.engine_key,
        )
    finally:
        cli.status("")


def model_or_offer(
    cli: Cli, asked: str | None, *, yes: bool = False, here: gpu_seen.Here | None = None
) -> ModelEntry:
    """The model to talk to: ``-m``, RADCHAT_MODEL, config, default, last used, else the offer.

    The offer asks on a terminal, takes ``-y`` elsewhere, and raises NotFound when neither is there.
    ``here``: None looks at this machine.
    """
    from radchat.models import registry
    from radchat.models.pull import ensure

    asked = asked or cli.config.model
    if asked and asked.startswith(("http://", "https://")):
        return behind(cli, asked, None)
    if asked:
        try:
            return ensure(cli.places, asked, _telling(cli), note=cli.note)
        finally:
            cli.status("")
    if registry.list_models(cli.places):
        return registry.choose(cli.places, None)
    return _offer(cli, yes=yes, here=here or gpu_seen.look())


def _offer(cli: Cli, *, yes: bool, here: gpu_seen.Here) -> ModelEntry:
    from radchat.models import fit

    memory = fit.available_memory()
    suggestions = fit.offers(memory)
    has_gpu = here.is_used(cli.config)
    best = fit.recommended(memory, has_gpu=has_gpu)
    if not yes:
        free = f"{size(memory)} of {fit.measured(has_gpu=has_gpu)} are free"
        cli.note(f"no model is here yet; {free}; these fit:")
        head, *lines = suggestion_lines(suggestions)
        cli.note(f"   {head}")
        for number, line in enumerate(lines, start=1):
            cli.note(f"{number}  {line}")
        best = suggestions[_ask(len(suggestions), suggestions.index(best))]
    try:
        return pull_with_progress(cli, best.source)
    except Unreachable as error:
        if best.source == fit.SMALLEST:
            raise
        cli.note(f"{error.message.partition('. ')[0]}; taking {fit.SMALLEST} instead")
        cli.note(f"{fit.SMALLEST}: {suggestions[-1].about}")
        return pull_with_progress(cli, fit.SMALLEST)


def _ask(count: int, default_index: int) -> int:
    """Which of the numbered offers."""
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise NotFound(
            "no model is here yet, and nobody to ask: add -y, or: radchat models pull smollm2-135m"
        )
    sys.stderr.write(f"which? [{default_index + 1}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip() or str(default_index + 1)
    if not answer.isdecimal() or not 1 <= int(answer) <= count:
        raise InvalidInput(f"{answer!r}: want a number from 1 to {count}")
    return int(answer) - 1


def suggestion_lines(suggestions: list[Suggestion]) -> list[str]:
    rows = [
        [one.source, size(one.fetch_bytes), size(one.memory_bytes), one.about]
        for one in suggestions
    ]
    return table(rows, ["model", "to fetch", "in memory", ""], right=frozenset((1, 2)))


def pull_with_progress(
    cli: Cli, source: str, *, name: str | None = None, from_file: Path | None = None
) -> ModelEntry:
    """``pull``, its progress on stderr: one line that changes on a terminal, else a line a step."""
    from radchat.models import pull as pulling

    for line in pulling.announced(cli.places, source):
        cli.note(line)
    try:
        return pulling.pull(
            cli.places, source, name=name, from_file=from_file, progress=_telling(cli)
        )
    finally:
        cli.status("")


def _telling(cli: Cli) -> Progress:
    """Progress on stderr: one line that changes on a terminal, else a line a step."""
    said = ""

    def progress(step: Step) -> None:
        nonlocal said
        if cli.shows_status:
            share = f" {size(step.done)} of {size(step.total)}" if step.total else ""
            cli.status(step.text + share)
        elif step.text != said:
            cli.note(step.text)
        said = step.text

    return progress
