"""check_regex: the size of what is repeated, nested or not, is found without writing it out."""
import pytest

from hamdam.engine.grammar.regex import RegexError, check_regex, in_a_json_string, size


@pytest.mark.parametrize(
    ("regex", "right"),
    [
        ("", 0), ("abc", 3), ("a{3}", 3), ("a{2,5}b", 6), ("a{3,}", 3), ("(ab){4}", 8), ("(a{10}){10}", 100),
        ("(?:a|b{5}){2}", 12), ("[a-z{9}]{4}", 4), ("\\{9}", 3), ("(?P<n>a{3}){3}", 9), ("a{,4}", 4), ("a*b+c?", 3),
        ("[^]{9}]{2}", 2), ("\\(a{2}\\)", 4), ("a{2}{3}", 6), ("(((a{9}){9}){9})", 729), (")a(", 2),
        ("[a{9}", 10), ("[[b]{9}", 12),
    ],
)  # fmt: skip
def test_the_size_of_a_regular_expression(regex: str, right: int) -> None:
    assert size(regex) == right


@pytest.mark.parametrize(
    ("regex", "right"),
    [
        ("^ab{2}$", "^ab{2}$"), ('[^"]', '[[^"]&&[^\\x1f]]'), ("\\[a]", "\\[a]"), ("[a[^b]]c", "[[a[^b]]&&[^\\x1f]]c"),
        ("[]a]", "[[]a]&&[^\\x1f]]"), ("[^]]]", "[[^]]&&[^\\x1f]]]"), ("[\\]]", "[[\\]]&&[^\\x1f]]"),
        ("[[:alpha:]_]", "[[[:alpha:]_]&&[^\\x1f]]"), ("\\p{Cc}", "[\\p{Cc}&&[^\\x1f]]"), ("[a", "[[&&[^\\x1f]]a"),
        ("[a[b]", "[[&&[^\\x1f]]a[[&&[^\\x1f]]b]"),
    ],
)  # fmt: skip
def test_no_class_of_a_json_string_holds_all_control_characters(regex: str, right: str) -> None:
    assert in_a_json_string(regex) == right


@pytest.mark.parametrize("regex", ["a{2000000000}", "(a{1001}){1000}", "((((a{99}){99}){99}){99}){99}", "a" * 5000])
def test_e08_what_would_grow_too_large_is_refused_before_it_grows(regex: str) -> None:
    with pytest.raises(RegexError):
        check_regex(regex)


def test_e08_nothing_special_happens_around_two_thousand() -> None:
    for count in (1999, 2000, 2001):
        check_regex(f"a{{{count}}}")
