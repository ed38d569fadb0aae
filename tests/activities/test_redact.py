"""What is kept out of results, and what out of errors and logs as well."""

from __future__ import annotations

import pytest

from activities.redact import REDACTED, Redactor


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ANTHROPIC_API_KEY", "sk-ant-0123456789"),
        ("TOKEN", "correct-horse-battery"),
        ("PGPASSWORD", "s3cr3t-pw"),
        ("stripe_secret", "whsec_12345678"),
        ("DB_CREDENTIALS", "user:pass-word"),
    ],
)
def test_secrets_are_kept_out_of_results_and_errors(name: str, value: str) -> None:
    """A name that can mean nothing else, and a value that looks the part."""
    made = Redactor.from_environment({name: value})
    assert made.known(f"is {value}.") == made.error(f"is {value}.") == f"is {REDACTED}."
    assert (made.names, made.suspected_names) == ((name,), ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SORT_KEY", "customer_id"),
        ("KEYCLOAK_URL", "https://login.example.com"),
        ("TOKENIZERS_PARALLELISM", "disabled-by-default"),
    ],
)
def test_ordinary_words_stay_in_results(name: str, value: str) -> None:
    """They are what a run is about; errors and logs can do without them."""
    made = Redactor.from_environment({name: value})
    assert made.known(f"by {value}") == f"by {value}"
    assert made.error(f"by {value}") == f"by {REDACTED}"
    assert (made.names, made.suspected_names) == ((), (name,))


def test_a_secret_within_another_leaves_nothing_of_it() -> None:
    """The longer one is replaced first, and so are its spellings in JSON."""
    made = Redactor(["abcdefgh", 'abcdefgh"ijkl'])
    assert made.known('abcdefgh"ijkl abcdefgh\\"ijkl abcdefgh') == " ".join([REDACTED] * 3)
