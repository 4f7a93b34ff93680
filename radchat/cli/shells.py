"""Completion as bash and zsh want it: their words to ours, our values to what may be inserted.

A value is data all the way. zsh quotes what it inserts itself. bash inserts what it is given, from
the last of its word breaks on, so the quoting that the line is in is read here; nothing on either
side evaluates a word of the line or a name of a session.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from radchat.cli.complete import Candidate

SHELLS = ("bash", "zsh")
_PLAIN = re.compile(r"[\w@%+=:,./~^-]", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")

BASH = r"""# radchat's completion for bash. In ~/.bashrc:  source <(radchat completion bash)
_radchat_complete() {
    local line state=
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -z $state ]]; then state=$line; else COMPREPLY+=("$line"); fi
    done < <(COMMAND __complete bash "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    case $state in
        more) compopt -o nospace 2>/dev/null ;;
        files) compopt -o default 2>/dev/null ;;
    esac
}
complete -F _radchat_complete radchat
"""

ZSH = r"""#compdef radchat
# radchat's completion for zsh. In ~/.zshrc, after compinit:  source <(radchat completion zsh)
_radchat() {
    local -a lines words_ values shown more_values more_shown
    local line
    words_=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
    lines=("${(@f)$(COLUMNS=$COLUMNS COMMAND __complete zsh "${words_[@]}" \
        2>/dev/null <"${TTY:-/dev/null}")}")
    for line in "${(@)lines[2,-1]}"; do
        case $line in
            (' '*) values+=("${${line# }%%$'\t'*}") shown+=("${line#*$'\t'}") ;;
            (+*) more_values+=("${${line#+}%%$'\t'*}") more_shown+=("${line#*$'\t'}") ;;
        esac
    done
    compadd -V radchat -l -d shown -a values
    compadd -V radchat -l -d more_shown -S '' -a more_values
    [[ $lines[1] == files ]] && _files
    (( $#values + $#more_values ))
}
if [[ ${funcstack[1]} == _radchat ]]; then
    _radchat "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _radchat radchat
fi
"""


def script(shell: str, command: Sequence[str]) -> str:
    """What the shell is to read; ``command`` starts this program again."""
    text = BASH if shell == "bash" else ZSH
    words = ["command", *command] if len(command) == 1 and "/" not in command[0] else command
    return text.replace("COMMAND", shlex.join(words))


# -- bash ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BashLine:
    """A command line up to the cursor, as bash reads it."""

    words: list[str]  # whole ones, unquoted, without the command's own name
    current: str  # the one at the cursor, unquoted
    kept: str  # how much of it stands before what bash will replace, unquoted
    quote: str  # the quote that is open at the cursor: "", "'" or '"'


def read_bash(line: str, breaks: str) -> BashLine:
    """Read the line. ``breaks``: COMP_WORDBREAKS, after which bash begins to replace."""
    words: list[str] = []
    word, kept, quote, is_word, i = "", "", "", False, 0
    while i < len(line):
        char = line[i]
        i += 1
        if quote == "'":
            quote, word = ("", word) if char == "'" else (quote, word + char)
            kept = word if not quote else kept
        elif quote and char == '"':
            quote, kept = "", word
        elif char == "\\" and i < len(line) and (not quote or line[i] in '"$`\\'):
            word, is_word, i = word + line[i], True, i + 1
        elif quote:
            word += char
        elif char in "'\"":
            quote, kept, is_word = char, word, True
        elif char.isspace():
            if is_word:
                words.append(word)
            word, kept, is_word = "", "", False
        else:
            word, is_word = word + char, True
            if char in breaks:
                kept = word
    while words and _ASSIGNMENT.match(words[0]):  # NAME=value radchat ...
        del words[0]
    return BashLine(words[1:], word, kept, quote)


def for_bash(line: BashLine, found: Sequence[Candidate], *, files: bool) -> list[str]:
    """The answer to the script: what kind it is, then what is to be inserted, each on a line."""
    inserted = []
    for each in found:
        if each.value.startswith(line.kept):
            text = _quoted(each.value[len(line.kept) :], line.quote, starts=not line.kept)
            if text is not None:
                inserted.append(text)
    more = len(found) == 1 and found[0].more
    state = "more" if more else "files" if files and not inserted else "words"
    return [state, *inserted]


def _quoted(text: str, quote: str, *, starts: bool) -> str | None:
    """``text`` in an open quote, or in none; None where it can't be said there."""
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote:  # between double quotes bash takes ! from the history, whatever stands before it
        return None if "!" in text else re.sub(r'(["$`\\])', r"\\\1", text)
    found = "".join(c if _PLAIN.match(c) or not c.isascii() else f"\\{c}" for c in text)
    return f"\\{found}" if starts and found[:1] == "~" else found


# -- zsh -------------------------------------------------------------------------------------------


def for_zsh(found: Sequence[Candidate], *, files: bool, columns: int) -> list[str]:
    """The answer to the script: what kind it is, then value, tab, and the line to show for it."""
    from radchat.chat.text import one_line
    from radchat.chat.width import cut, pad, width

    room = min(max((width(each.value) for each in found), default=0), max(columns // 2, 8))
    lines = ["files" if files else "words"]
    for each in found:
        text = f"{pad(each.value, room)}  {one_line(each.text)}" if each.text else each.value
        shown = cut(text, max(columns - 1, 8))
        lines.append(f"{'+' if each.more else ' '}{each.value}\t{shown}")
    return lines
