"""Random lives of the block pool, short ones: policy_world.py says what is looked at."""
import random

import pytest
from block_life import Life, search


@pytest.mark.parametrize("seeds", [range(0, 10), range(10, 20), range(20, 30)])
def test_every_rule_of_a_blocks_life_holds_in_random_lives(seeds):
    for seed in seeds:
        Life(random.Random(seed)).run(300)


def test_every_rule_of_a_blocks_life_holds_where_hypothesis_looks():
    search(examples=20, steps=30)
