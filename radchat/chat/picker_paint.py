"""The tree picker as lines of a screen: only the rows that are seen are laid out."""

from __future__ import annotations

from radchat.chat.footer import counted
from radchat.chat.picker_state import KEYS, Picker
from radchat.chat.screen import Line
from radchat.chat.text import clean, one_line
from radchat.chat.tree_rows import HEAD_MARK, kv_cell
from radchat.chat.tree_shape import WHO, Place, steps
from radchat.chat.width import cut, pad, width

LEAST_TEXT = 12  # columns; names and indentation give way
TEXT_CHARS = 400  # more of a text is on no row
ASKS = {
    "find": "/",
    "fork": "name of the new branch (none: automatic): ",
    "label": "label: ",
}


def paint(picker: Picker, columns: int, rows: int) -> list[Line]:
    if picker.mode == "help":
        return _help(columns, rows)
    room = max(rows - 3, 1)
    picker.scroll(room)
    shown = picker.rows[picker.top : picker.top + room]
    lines: list[Line] = [[("bold", cut(_title(picker), columns))]]
    lines += _rows(picker, shown, columns)
    if not shown:
        lines.append([("", "(no messages yet)" if not picker.messages else "(none of these)")])
    lines += [[]] * (room + 1 - len(lines))
    return [*lines, *_bottom(picker, columns)][:rows]


def _title(picker: Picker) -> str:
    tree = picker.tree
    parts = [
        one_line(str(tree.get("name") or "-")),
        counted(len(picker.messages), "message"),
        f"{max(picker.at + 1, 0)}/{len(picker.rows)}",
    ]
    if picker.filter != "default":
        parts.append(f"filter {picker.filter}")
    if picker.found:
        parts.append(f"{len(picker.matches)} with {one_line(picker.found)}")
    if picker.marks:
        parts.append(f"{len(picker.marked)} marked d")
    return "  ".join(parts)


def _bottom(picker: Picker, columns: int) -> list[Line]:
    """What was said, or is asked, and what may be pressed."""
    said: Line = [("bold", cut(one_line(picker.notice), columns))]
    if picker.mode not in ASKS:
        return [said, [("", cut(_hint(picker), columns))]]
    text = f"{ASKS[picker.mode]}{clean(picker.typed)}"
    while width(text) > columns - 1:  # its end is seen
        text = text[1:]
    return [said, [("", text), ("reverse", " ")]]


def _hint(picker: Picker) -> str:
    """What is left out at 80 columns is told of by ``?``."""
    keys = ["Enter go", "f fork", "l label", "d mark"]
    keys += [f"x delete {len(picker.marked)}"] if picker.marks else []
    keys += ["Esc all again"] if picker.found else ["/ find", "Tab filter"]
    return "  ".join([*keys, "? keys", "q leave"])


def _rows(picker: Picker, shown: list[Place], columns: int) -> list[Line]:
    limit = max(columns // 4, 6)
    cells = [kv_cell(picker.messages[key]) for key, _, _ in shown]
    kv = max((len(cell) for cell in cells), default=0)
    lines = []
    for place, cell in zip(shown, cells, strict=True):
        key, indent = place[0], 2 * steps(place, picker.deepest, limit)
        is_cursor = key == picker.cursor
        gutter = (">" if is_cursor else " ") + ("d" if key in picker.marked else " ")
        text = _row(picker, key, indent, columns - kv - 5, cell.ljust(kv))
        lines.append([(_style(picker, key), pad(f"{gutter} {text}", columns))])
    return lines


def _style(picker: Picker, key: str) -> str:
    styles = []
    if key == picker.head:
        styles.append("bold")
    if key in picker.marked:
        styles.append("fg:ansired")
    if picker.found and key not in picker.matches:
        styles.append("fg:ansibrightblack")
    if key == picker.cursor:
        styles.append("reverse")
    return " ".join(styles)


def _row(picker: Picker, key: str, indent: int, room: int, kv: str) -> str:
    """Names keep a third of the row at most; HEAD's mark always stays."""
    message = picker.messages[key]
    who = str(message["role"])
    start = f"{' ' * indent}{picker.short[key]} {WHO.get(who, one_line(who)[:4]):<4} "
    names = "  ".join(one_line(name) for name in picker.names[key])
    if picker.below[key] and key in picker.folded and not picker.found:
        names = f"{names}  +{picker.below[key]:,}".lstrip()
    head = HEAD_MARK if key == picker.head else ""
    names = cut(names, max(room // 3 - len(head), 0))
    names = "  ".join(part for part in (names, head) if part)
    left = room - width(names) - 1
    text = one_line(str(message.get("text") or "")[:TEXT_CHARS])
    return f"{pad(start + text, max(left, 0))} {names}  {kv}"


def _help(columns: int, rows: int) -> list[Line]:
    lines: list[Line] = [[("bold", cut("Keys", columns))], []]
    lines += [[("", cut(f"{name:<12}{text}", columns))] for name, text in KEYS]
    lines += [[], [("", cut("any key: back to the tree", columns))]]
    return lines[:rows]
