"""One frontier of all candidates: a search of every cut, on all devices and in all micro-batches, finds no other points."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import tensorflow as tf
from helpers.large import first
from helpers.searches import find_with_stages

from tensoropt.common.errors import InputError
from tensoropt.ft import Budget
from tensoropt.profiling.hardware import named
from tensoropt.search.candidates.bounds import points_of
from tensoropt.search.candidates.candidate import Candidate, Cutting
from tensoropt.search.candidates.search_cut import AlikeStages, search_cut
from tensoropt.search.frontiers.find_frontier import searched
from tensoropt.search.request import Request
from tensoropt.search.stages.cuts import Cut
from tensoropt.search.stages.placement import choices
from tensoropt.search.stages.points import SearchedStages, SearchedWhole
from tensoropt.sharding.model import Model
from tensoropt.sharding.stages import Stages
from tensoropt.tools.offline import record


def drawn(seed: int) -> tuple[Model, str]:
    """Return a model of two to four layers, and a cluster of two or four devices; few layers where these are four."""
    rng = random.Random(seed)
    cluster = rng.choice(["v100-1x2", "v100-2x1", "v100-2x2", "v100-1x4"])
    widths = [rng.choice([8, 16, 32, 64, 128, 256]) for _ in range(rng.randint(3, 5 if cluster[-1] != "4" else 3))]
    batch, results = rng.choice([8, 16, 64]), [rng.choice([tf.tanh, tf.nn.relu, tf.identity]) for _ in widths]

    def loss() -> tf.Tensor:
        value = tf.compat.v1.placeholder(tf.float32, [batch, widths[0]])
        for layer, (one, other) in enumerate(itertools.pairwise(widths)):
            value = results[layer](tf.matmul(value, tf.compat.v1.get_variable(f"w{layer}", [one, other])))
        return tf.reduce_mean(tf.square(value))

    return record(loss, "drawn", rng.choice(["sgd", "adam"])).model, cluster


def of_all_cuts(asked: Request, n_devices: int, counts: list[int]) -> Iterator[SearchedStages]:
    cutting, alike = Cutting(asked, {}, n_devices, None), AlikeStages()
    names = [op.name for op in asked.model.graph.step_operators if op.operands and op.updates is None]
    for n_stages in counts:
        all_blocks = [
            blocks
            for blocks in itertools.product(*choices(asked.hardware, n_devices, n_stages, tries_all=True))
            if all(one.end == other.first for one, other in itertools.pairwise(blocks)) and blocks[-1].end == n_devices
        ]
        possible = [candidate.micro_batches for candidate in cutting.possible(n_stages)]
        for cuts, n, blocks in itertools.product(itertools.combinations(names[:-1], n_stages - 1), possible, all_blocks):
            stages = Stages(asked.model, cuts)
            try:
                assert len(stages.models) == n_stages
            except InputError:  # a stage would train nothing
                continue
            candidate = Candidate(n_stages, n, None, Cut(stages, blocks, math.nan))
            found = search_cut(asked, candidate, cutting, alike, False, 0.0)
            assert found is not None
            yield found


@pytest.mark.parametrize("seed", first(20, range(200)))
def test_a_search_of_every_cut_finds_no_other_points(seed: int) -> None:
    model, cluster = drawn(seed)
    asked = Request(model, named(cluster), None, budget=Budget(seconds=0))
    n_devices, n_variables = asked.hardware.n_devices, len(model.graph.variables)
    counts = [count for count in (2, 3, 4) if count <= min(n_devices, n_variables)]
    found = find_with_stages(asked, n_devices, [1, *counts])
    whole = SearchedWhole.of(searched(replace(asked, wants_frontier=True), n_devices))
    every = [whole, *of_all_cuts(asked, n_devices, counts)]
    expected, points = points_of(every), points_of(found.searched)
    assert len(every) >= len(counts) and expected.are_beaten(points)
    assert points._replace(time_us=points.time_us * (1 + 1e-12)).are_beaten(expected)
    assert found.bound.time_ns[0] / 1e3 <= expected.time_us.min()
    least_us = [expected.within(peak).time_us.min() for peak in found.peaks]
    told = zip(found.points_of, least_us, strict=True)
    assert all(point.time_us <= (1 + point.gap) * us + 1e-3 for point, us in told)  # points differ by whole nanoseconds
