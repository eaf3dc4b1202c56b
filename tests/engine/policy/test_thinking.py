"""A thought ends when it has had its tokens."""
import pytest

from hamdam.engine.policy.thinking import Thinking

OPEN, CLOSE = 7, 8


@pytest.mark.parametrize(
    ("generated", "budget", "opened", "due"),
    [
        ([], 0, True, CLOSE),
        ([], 1, True, None),
        ([1], 1, True, CLOSE),
        ([], 0, False, None),
        ([OPEN], 0, False, CLOSE),
        ([OPEN, 1], 2, False, None),
        ([OPEN, 1, 2], 2, False, CLOSE),
        ([OPEN, 1, CLOSE, 2, 3, 4], 2, False, None),
        ([1, 2, CLOSE, 5, OPEN, 1, 2, 3], 2, True, None),
        ([1, 2, 3, 4], 2, False, None),
    ],
)
def test_the_closing_token_is_due_when_the_budget_is_spent_and_never_in_an_answer(
    generated: list[int], budget: int, opened: bool, due: int | None
) -> None:
    prompt = [5, OPEN, CLOSE]
    whole = Thinking(budget, OPEN, CLOSE, inside=opened)
    assert whole.due([*prompt, *generated], len(prompt)) == due
    step_by_step = Thinking(budget, OPEN, CLOSE, inside=opened)
    for count in range(len(generated) + 1):
        last = step_by_step.due([*prompt, *generated[:count]], len(prompt))
    assert last == due


def test_who_thinks_more_than_once_has_one_budget_for_all_of_it() -> None:
    said = [OPEN, 1, CLOSE, 2, OPEN, 1, 1, 1]
    thinks = iter([True, True, False, False, True, True, True, True])
    own = Thinking(3, lambda _: next(thinks), CLOSE)
    assert [own.due([5, *said[:count]], 1) for count in range(9)] == [*[None] * 7, CLOSE, CLOSE]
