"""Words for a part of a training that is late as a whole."""

from __future__ import annotations

from gputop.findings.ranks import SlowPart
from gputop.findings.sentence import Sentence, filled
from gputop.model.parallel import CONTEXT, EXPERT, REPLICA, STAGE, TENSOR, Parallel

_NAMES = {
    STAGE: lambda number, count: filled("stage {:d} of {:d}", number, count),
    REPLICA: lambda number, count: filled("data-parallel replica {:d} of {:d}", number, count),
    EXPERT: lambda number, count: filled("expert-parallel part {:d} of {:d}", number, count),
    CONTEXT: lambda number, count: filled("context-parallel part {:d} of {:d}", number, count),
    TENSOR: lambda number, count: filled("tensor-parallel part {:d} of {:d}", number, count),
}
_REASONS = {
    STAGE: "the pipeline is uneven",
    REPLICA: "its data are uneven, with more samples or longer sequences",
    EXPERT: "its experts get more tokens than the others",
    CONTEXT: "its parts of the sequences cost more, as later ones do under a causal mask",
    TENSOR: "it does more than its slice of each layer, such as loading data for its group",
}


def name_of(part: SlowPart, parallel: Parallel) -> Sentence:
    """``stage 2 of 4``; counted from 1."""
    return _NAMES[part.kind](part.number + 1, parallel.count(part.kind))


def words_of(part: SlowPart, parallel: Parallel, ranks: str) -> Sentence:
    """A sentence that the part is late. ``ranks``: words for its ranks."""
    words = "{} ({}) takes longer than the others, and all of it alike: {}, and no rank is to blame"
    return filled(words, name_of(part, parallel), ranks, _REASONS[part.kind])

