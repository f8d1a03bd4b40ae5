"""Claims that say otherwise of one thing: each names the others, so that nobody reads one alone."""

from __future__ import annotations

PAIRS = (
    # within half of the layers as good as full fine-tuning, or 3.9 points below it; neither baseline has converged
    ("branches.mixed-quality", "workbench.order_branch-3_fine-tune"),
    ("branches.mixed-lower-bound", "workbench.order_branch-3_fine-tune"),
    ("branches.mixed-learned", "workbench.order_branch-3_fine-tune"),
    ("branches.mixed-goal", "workbench.order_branch-3_fine-tune"),
    # the blended trunk gains, the one with the paper's own weights gains little
    ("together.mean-gain", "evidence.whole-mean-gain"),
    ("together.tasks-that-gain", "evidence.whole-tasks-that-gain"),
    ("together.gap-closed", "evidence.whole-gap-closed"),
    ("evidence.blend-gain", "evidence.whole-gain"),
    # attention over the mean of positions: by 0.5 points, or by 8 and by 6 and 3
    ("evidence.du2020-attention", "workbench.order_pooled-attention_pooled-mean"),
    ("evidence.du2020-attention", "first-light.pooler-order-emotion"),
    ("evidence.du2020-attention", "first-light.pooler-order-offensive"),
    # memory of 50 tasks over one: where the queue's largest batches are read, and where a call has 2,048 texts
    ("server.memory-50-tasks", "engine.memory"),
    # a server at saturation, before answers had six digits and heads read words, and since
    ("server.saturation-int8", "fast.saturation"),
    ("server.saturation-int8", "fast.saturation-vnni"),
    # annealed sampling is better on the tasks that learn, and not on tasks that a trunk never saw
    ("evidence.annealed-pals", "together.annealed"),
)


def of(id: str) -> tuple[str, ...]:
    """The claims that say otherwise than this one."""
    return tuple(other for pair in PAIRS if id in pair for other in pair if other != id)
