"""StepInputs: what a model reads of a step, in memory that stays where it is, padded or not."""
import pytest
import torch
from stepping import sequence

from hamdam.engine.execution.step_inputs import ALIGNED, Shape, Step, StepInputs
from hamdam.engine.policy.batch import Row
from hamdam.engine.policy.sequence import Sequence

CPU = torch.device("cpu")
LARGEST = Shape(tokens=64, rows=8, sampled=8, blocks=8)


def with_blocks(id: int, ids: range, blocks: list[int]) -> Sequence:
    made = sequence(id, ids)
    made.block_table = blocks
    return made


@pytest.fixture
def rows() -> list[Row]:
    """A decode row, a piece of a prompt that ends nothing, and the end of one."""
    return [
        Row(with_blocks(1, range(100, 118), [7, 3]), 17, 1, sample=True),
        Row(with_blocks(2, range(200, 240), [5, 1, 6]), 14, 4, sample=False),
        Row(with_blocks(3, range(50, 52), [2]), 0, 2, sample=True),
    ]


def facts(step: Step) -> dict[str, list[int] | list[list[int]]]:
    rows = step.rows
    return {
        "ids": step.ids.tolist(), "positions": step.positions.tolist(), "sampled": step.sampled.tolist(),
        "starts": rows.query_starts.tolist(), "contexts": rows.context_lengths.tolist(), "slots": rows.slots.tolist(),
        "tables": rows.block_tables.tolist(),
    }


def test_tokens_lie_one_after_another_and_each_row_knows_its_own(rows: list[Row]) -> None:
    assert facts(StepInputs(LARGEST, CPU).take(rows)) == {
        "ids": [117, 214, 215, 216, 217, 50, 51],
        "positions": [17, 14, 15, 16, 17, 0, 1],
        "sampled": [0, 2],
        "starts": [0, 1, 5, 7],
        "contexts": [18, 18, 2],
        "slots": [3 * 16 + 1, 5 * 16 + 14, 5 * 16 + 15, 16, 17, 2 * 16, 2 * 16 + 1],
        "tables": [[7, 3], [5, 1], [2, 0]],
    }


def test_padding_is_rows_of_one_token_in_a_block_of_their_own(rows: list[Row]) -> None:
    found = facts(StepInputs(LARGEST, CPU).take(rows[:1], Shape(3, 3, 3, 4), padding_block=9))
    assert found == {
        "ids": [117, 0, 0],
        "positions": [17, 0, 0],
        "sampled": [0, 0, 0],
        "starts": [0, 1, 2, 3],
        "contexts": [18, 1, 1],
        "slots": [3 * 16 + 1, 9 * 16, 9 * 16],
        "tables": [[7, 3, 9, 9], [9, 9, 9, 9], [9, 9, 9, 9]],
    }


def test_nobody_at_all_is_a_step_of_padding() -> None:
    found = facts(StepInputs(LARGEST, CPU).take([], Shape(2, 2, 2, 1), padding_block=4))
    assert (found["slots"], found["contexts"], found["tables"]) == ([64, 64], [1, 1], [[4], [4]])


def test_steps_of_one_shape_lie_in_one_place_and_begin_where_kernels_like_it(rows: list[Row]) -> None:
    inputs, shape = StepInputs(LARGEST, CPU), Shape(4, 4, 4, 3)
    places = []
    for some in ([], rows[:1], rows[:1]):
        step = inputs.take(some, shape)
        fields = (step.rows.query_starts, step.rows.context_lengths, step.rows.block_tables, step.rows.slots)
        places.append([tensor.data_ptr() for tensor in (step.ids, step.positions, step.sampled, *fields)])
        assert all(tensor.is_contiguous() for tensor in fields)
    assert places[0] == places[1] == places[2]
    assert all((place - places[0][0]) % (8 * ALIGNED) == 0 for place in places[0])


def test_a_table_is_followed_as_it_grows_and_read_anew_when_it_is_another(rows: list[Row]) -> None:
    inputs, growing = StepInputs(LARGEST, CPU), rows[1].sequence
    for blocks in range(1, 4):
        growing.block_table[:] = [5, 1, 6][:blocks]
        step = inputs.take([Row(growing, 16 * blocks - 9, 1, sample=True)])
        assert step.rows.block_tables.tolist() == [[5, 1, 6][:blocks]]
    growing.block_table = [5, 4, 6]
    step = inputs.take([Row(growing, 39, 1, sample=True)])
    assert step.rows.block_tables.tolist() == [[5, 4, 6]]


def test_what_a_row_reserved_ahead_is_left_out(rows: list[Row]) -> None:
    step = StepInputs(LARGEST, CPU).take([Row(rows[1].sequence, 0, 5, sample=False)])
    assert step.rows.block_tables.tolist() == [[5]]
