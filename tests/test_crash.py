"""Five rounds of tests/crash.py: kill -9 under load loses nothing that was acknowledged."""
from crash import rounds


def test_kill_9_loses_nothing_that_was_acknowledged() -> None:
    seen = rounds(5, with_model=False, seed=20)
    assert seen["rounds"] == 5
    assert seen["questions"] > 10
    assert seen["ends"] > 0
    assert seen["interrupted"] == 0 or seen["continued"] > 0
