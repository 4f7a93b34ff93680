"""What goes into the engine and what comes out. Plain data: ids in, ids and text out."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from radchat.errors import InvalidInput

if TYPE_CHECKING:
    from radchat.engine.grammars import Compiled

Ids: TypeAlias = "array[int]"  # typecode 'I': four bytes an id, compared in bulk
Fill: TypeAlias = Literal["answer", "load", "warm", "score"]
Tier: TypeAlias = Literal["device", "disk", "computed"]  # the last: none had it
FILLS: tuple[Fill, ...] = ("answer", "load", "warm", "score")
MAX_STOPS = 64
MAX_BIASES = 1024
MAX_CHOICES = 128
MAX_LOGPROBS = 20
_REALS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token or a stop string
    LENGTH = "length"  # max_tokens, the context or the KV pool's end
    DEAD_END = "dead_end"  # the grammar allows no token here, or met a limit; what was said stays
    ABORT = "abort"  # asked for, or the client went away
    ERROR = "error"


class Priority(IntEnum):
    FOREGROUND = 0  # a person is waiting for these words
    BACKGROUND = 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn (``sampling.py``). ``validate`` names the bad field."""

    temperature: float = 1.0  # 0 = exact argmax
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output, as transformers
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0  # always given; whoever asks without one draws it and keeps it
    max_tokens: int | None = None  # None: what the context leaves
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()  # end of turn; kept as the last id
    logprobs: int | None = None  # None = off; 0 = the drawn token's only; k = and the k best
    prompt_logprobs: bool = False

    def validate(self, vocab_size: int) -> None:
        def require(holds: bool, name: str, want: str) -> None:
            if not holds:
                raise InvalidInput(f"{name}: {want} (got {getattr(self, name)!r})", field=name)

        for name in _REALS:
            require(_is_real(getattr(self, name)), name, "want a number")
        for name in ("top_k", "seed"):
            require(_is_whole(getattr(self, name)), name, "want a whole number")
        for name in ("max_tokens", "logprobs"):
            value = getattr(self, name)
            require(value is None or _is_whole(value), name, "want a whole number, or none")
        # comparisons are written so that NaN fails them
        require(0.0 <= self.temperature <= 100.0, "temperature", "want 0 to 100")
        require(self.top_k >= 0, "top_k", "want 0 (off) or more")
        require(0.0 < self.top_p <= 1.0, "top_p", "want more than 0, at most 1")
        require(0.0 <= self.min_p <= 1.0, "min_p", "want 0 to 1")
        require(0.0 < self.repetition_penalty <= 10.0, "repetition_penalty", "want 0 to 10")
        require(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "want -2 to 2")
        require(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "want -2 to 2")
        require(0 <= self.seed < 2**64, "seed", "want 0 to 2**64 - 1")
        require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "want 1 or more")
        require(len(self.stop) <= MAX_STOPS, "stop", f"want at most {MAX_STOPS} strings")
        require(all(isinstance(s, str) and s for s in self.stop), "stop", "want no empty string")
        ids = f"want ids 0 to {vocab_size - 1}"
        require(all(_is_whole(i) and 0 <= i < vocab_size for i in self.stop_ids), "stop_ids", ids)
        require(len(self.logit_bias) <= MAX_BIASES, "logit_bias", f"want at most {MAX_BIASES}")
        require(
            all(
                _is_whole(i) and 0 <= i < vocab_size and _is_real(bias) and -100 <= bias <= 100
                for i, bias in self.logit_bias.items()
            ),
            "logit_bias",
            f"{ids} and values -100 to 100",
        )
        require(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS,
            "logprobs",
            f"want 0 to {MAX_LOGPROBS}",
        )


@dataclass(slots=True)
class Request:
    """One generation asked of the engine: a prompt and ``n`` samples after it.

    ``fill`` other than ``answer`` draws nothing: ``load`` restores what is on disk of the ids, to
    the first hole or to where computing is cheaper; ``warm`` has all of them cached, computing what
    is not on disk; ``score`` gives the log probabilities of the ids from ``score_from`` on. All end
    with reason ``stop`` and nothing kept.
    """

    id: str
    ids: Ids
    params: SamplingParams
    n: int = 1
    priority: Priority = Priority.FOREGROUND
    first_choice: int = 0  # numbers the samples' noise; a resumed choice keeps its own
    namespace: str = ""
    said: int = 0  # of ``ids``, the last ones that are the answer's own already (it goes on)
    fill: Fill = "answer"
    grammar: Compiled | None = None  # what the answer must be of, ``said`` included
    jump: bool = True  # what the grammar forces is not drawn; where log probabilities are, it is
    messages: Sequence[Mapping[str, Any]] = ()  # the same as text, for who takes no ids
    score_from: int = 0  # log probabilities of the prompt are of ids[score_from:]: no row before
    # score_from - 1 runs for them

    @property
    def scores(self) -> bool:
        """Whether log probabilities of its prompt are asked for."""
        return self.fill == "score" or self.params.prompt_logprobs


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was admitted: what is reused and what is left to compute.

    ``cached_tokens`` were found on the device; ``disk_tokens`` beyond them will be restored, if the
    blocks turn out to be whole.
    """

    request_id: str
    input_tokens: int
    cached_tokens: int
    disk_tokens: int = 0


@dataclass(frozen=True, slots=True)
class GaveWay:
    """So many tokens of pinned KV were evicted, for this request could not run otherwise."""

    request_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A prompt's KV is there up to ``computed_tokens``: one more chunk was computed (``extend``) or
    one more block came from disk (``restore``).
    """

    request_id: str
    computed_tokens: int
    total_tokens: int
    stage: Literal["extend", "restore"] = "extend"


@dataclass(frozen=True, slots=True)
class Tokens:
    """New ids of one choice, and the text that has become whole (may be empty).

    ``choice`` counts from 0 within the request; its noise is that of ``first_choice + choice``.
    """

    request_id: str
    choice: int
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    forced: bool = False  # all of them by the grammar, none drawn


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; device + host + disk + computed = input (promise 2).

    Choices of one request share the input: each reports the same input numbers and its own output.
    ``cached_tokens`` = device + host + disk. What was restored counts as ``disk`` once a row that
    attends to it has run (of a ``load``, which runs none: when it ends). An abort before the prompt
    was computed leaves the sum short, and so does a ``load`` of what is not on disk. Where log
    probabilities of the prompt are asked for, every token from ``score_from - 1`` on runs through
    the model, so all of those count as computed.
    """

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    device: int = 0
    host: int = 0
    disk: int = 0
    computed: int = 0
    forced_tokens: int = 0  # of the output: not drawn, the grammar left no choice
    is_remote: bool = False  # of another program's engine: ``remote`` is what it says it had
    remote: int | None = None  # of the input; None: it does not say


class Span(NamedTuple):
    """Tokens [start, end) of a prompt: found on the device, restored from disk, or computed."""

    start: int
    end: int
    tier: Tier


class Tiers(NamedTuple):
    """Of some ids: tokens on the device from the start, and those beyond them that a request would
    restore from disk (where loading is estimated cheaper than computing), before and behind holes.
    """

    device: int
    disk: int


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice has ended; ``text`` is the last of its words.

    ``kept`` of the ids that ``Tokens`` have sent belong to the answer: all of them, but after a
    stop string those before the token on which the match begins. ``stopped`` = the last kept id is
    a stop id. ``spans``: where the prompt's KV came from, in order.
    """

    request_id: str
    choice: int
    reason: FinishReason
    text: str
    kept: int
    stopped: bool
    usage: Usage
    error: str | None = None
    last: bool = True  # no other choice of this request is still running
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    spans: tuple[Span, ...] = ()


Event: TypeAlias = Started | GaveWay | Progress | Tokens | Finished
