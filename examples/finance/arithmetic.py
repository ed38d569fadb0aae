"""Exact arithmetic on an expression that a language model wrote.

The text never reaches Python's own parser or `eval`: it is read by the small grammar below, and
a thing the grammar lacks (attributes, strings, comparisons, names) does not exist here.

    sum     = product {("+" | "-") product}
    product = signed {("*" | "/" | "//" | "%") signed}
    signed  = ("+" | "-") signed | power
    power   = percent ["**" signed]
    percent = atom ["%" ["of" signed]]
    atom    = number | "(" sum ")" | name "(" sum {"," sum} ")"
    name    = "abs" | "max" | "min" | "round" | "sqrt"

Semantics where people or languages disagree:

* `7%` is 0.07 and `7% of x` is 0.07 * x. A `%` followed by a number, a name or `(` is the modulo
  operator; before anything else it is the percent sign. So `10 % 3` is 1, `100 * 7% - 3` is 4, and
  `200 + 10%` is 200.1, not 220.
* `//` and `%` are Python's for integers: the quotient is floored and the remainder has the
  divisor's sign. `-7 // 2` is -4, `-7 % 3` is 2; a negative divisor of `%` goes into parentheses.
* `-2**2` is -4, and `**` groups from the right.
* `round(x, n)` rounds halves away from zero, as a spreadsheet does: `round(2.5)` is 3.
* Integers below 10**100 are exact. Other results are computed to 110 significant digits and shown
  with 28.

Everything is bounded before it is computed: the text's length, the nesting, the number of
arguments, and through the decimal context the digits and magnitude of every intermediate result,
so no operation has anything large to work on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import (
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    Subnormal,
    localcontext,
)
from typing import Final, NamedTuple

__all__ = ["MAX_LENGTH", "ExpressionError", "calculate", "evaluate"]

MAX_LENGTH: Final = 1000
"""Characters in an expression."""

_MAX_DEPTH: Final = 50
_MAX_ARGUMENTS: Final = 20
_MAX_PLACES: Final = 50

# Ten digits more than the largest integer has: every integer below the bound is exact, and a
# quotient multiplied back (1 / 3 * 3) is whole again once rounded for showing.
_EXACT: Final = Context(
    prec=110, Emin=-99, Emax=99, traps=[DivisionByZero, InvalidOperation, Overflow, Subnormal]
)
_SHOWN: Final = Context(prec=28)

_ALLOWED: Final = (
    "Allowed: numbers (1234.5, 1_000_000, 4.12e8), + - * / // % ** and parentheses, "
    "percentages (7%, 7% of 250) and abs, max, min, round, sqrt."
)


class ExpressionError(ValueError):
    """The expression cannot be computed. The message, meant for a model, says why in a sentence."""


def calculate(expression: str) -> str:
    """The value of `expression` in plain decimal notation, such as `28840000` or `0.3`.

    Trailing zeros are dropped. An exponent (`1.5e-30`) appears only when plain notation would pad
    the significant digits with zeros. Raises `ExpressionError`.
    """
    return _notation(evaluate(expression))


def evaluate(expression: str) -> Decimal:
    """The value of `expression`, always finite. Raises `ExpressionError`."""
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"The expression is longer than {MAX_LENGTH} characters; split it.")
    with localcontext(_EXACT):
        try:
            return _Parser(_tokens(expression)).value()
        except Overflow:
            raise ExpressionError(
                "The number is too large: every step must stay below 10**100."
            ) from None
        except Subnormal:
            raise ExpressionError(
                "The number is too close to zero: every step must be 0 or at least 10**-99."
            ) from None
        except DecimalException:
            # The operators name the cases they know; what is left has no finite real value.
            raise ExpressionError("The expression has no finite real value.") from None


class _Token(NamedTuple):
    kind: str  # "number", "name", "sign" or "end"
    text: str
    at: int  # counted from 1, as people count


_LEXEME: Final = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>\*\*|//|[-+*/%(),])
    )""",
    re.VERBOSE,
)
_GROUPED: Final = re.compile(r"(?<![0-9._])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])")


def _tokens(expression: str) -> list[_Token]:
    # "min(1,000, 5)" would quietly be three arguments, so a comma between digits is never guessed.
    if grouped := _GROUPED.search(expression):
        raise ExpressionError(
            f"{grouped.group()[:20]} is ambiguous: write thousands without commas (1000000 or "
            "1_000_000), and put a space after a comma between arguments."
        )
    tokens: list[_Token] = []
    end = len(expression.rstrip())
    position = 0
    while position < end:
        lexeme = _LEXEME.match(expression, position)
        if lexeme is None:
            raise _unreadable(expression, position)
        kind = lexeme.lastgroup or "end"
        tokens.append(_Token(kind, lexeme[kind], lexeme.start(kind) + 1))
        position = lexeme.end()
    tokens.append(_Token("end", "", end + 1))
    return tokens


_HINTS: Final = {
    "^": " Write ** for a power.",
    "$": " Leave currency signs out.",
    "€": " Leave currency signs out.",
    "£": " Leave currency signs out.",
    "\N{MULTIPLICATION SIGN}": " Write * to multiply.",
    "\N{DIVISION SIGN}": " Write / to divide.",
    "\N{MINUS SIGN}": " Write - for minus.",
}


def _unreadable(expression: str, position: int) -> ExpressionError:
    while expression[position].isspace():
        position += 1
    character = expression[position]
    # !a keeps lone surrogates and control characters out of what the model will read.
    return ExpressionError(
        f"Character {position + 1}, {character!a}, is not allowed."
        f"{_HINTS.get(character, '')} {_ALLOWED}"
    )


class _Parser:
    """Computes while it reads; one method per rule of the grammar in the module's docstring."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def value(self) -> Decimal:
        if self._peek().kind == "end":
            raise ExpressionError(f"The expression is empty. {_ALLOWED}")
        value = self._sum()
        if self._peek().kind != "end":
            raise self._unexpected("an operator")
        return +value

    def _sum(self) -> Decimal:
        value = self._product()
        while sign := self._take("+", "-"):
            right = self._product()
            value = value + right if sign == "+" else value - right
        return value

    def _product(self) -> Decimal:
        value = self._signed()
        while sign := self._take("*", "/", "//", "%"):
            value = _PRODUCT[sign](value, self._signed())
        return value

    def _signed(self) -> Decimal:
        # Every nesting passes here (parentheses, arguments, signs, exponents), so this one count
        # bounds the recursion.
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ExpressionError(f"The expression is nested more than {_MAX_DEPTH} deep.")
        if sign := self._take("+", "-"):
            value = self._signed() if sign == "+" else -self._signed()
        else:
            value = self._power()
        self._depth -= 1
        return value

    def _power(self) -> Decimal:
        base = self._percent()
        return _power(base, self._signed()) if self._take("**") else base

    def _percent(self) -> Decimal:
        value = self._atom()
        if self._peek().text == "%" and not self._operand_follows():
            self._take("%")
            value /= 100
            if self._take("of"):
                value *= self._signed()
        return value

    def _operand_follows(self) -> bool:
        """Whether the sign under the cursor stands before an operand: `%` is then the modulo."""
        after = self._tokens[self._next + 1]
        return after.kind == "number" or after.text == "(" or after.text in _FUNCTIONS

    def _atom(self) -> Decimal:
        token = self._peek()
        if token.kind == "number":
            self._next += 1
            return _EXACT.create_decimal(token.text.replace("_", ""))
        if token.kind == "name":
            return self._call()
        if self._take("("):
            value = self._sum()
            self._expect(")")
            return value
        raise self._unexpected("a number")

    def _call(self) -> Decimal:
        token = self._peek()
        function = _FUNCTIONS.get(token.text)
        if function is None:
            raise ExpressionError(f"{token.text[:20]!r} is not a number or function. {_ALLOWED}")
        self._next += 1
        self._expect("(")
        arguments = [self._sum()]
        while self._take(","):
            arguments.append(self._sum())
            if len(arguments) > _MAX_ARGUMENTS:
                raise ExpressionError(f"{token.text} takes at most {_MAX_ARGUMENTS} arguments.")
        self._expect(")")
        return function(arguments)

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *texts: str) -> str:
        text = self._peek().text
        if text not in texts:
            return ""
        self._next += 1
        return text

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected(f"{text!r}")

    def _unexpected(self, wanted: str) -> ExpressionError:
        token = self._peek()
        found = "the end" if token.kind == "end" else f"{token.text[:20]!r}"
        hint = ""
        if token.text == "of":
            hint = " 'of' follows a percentage: 7% of 250."
        elif token.kind == "name":
            hint = " Write units as factors: 412 million is 412 * 10**6."
        return ExpressionError(
            f"Expected {wanted} at character {token.at} but found {found}.{hint} {_ALLOWED}"
        )


def _divide(left: Decimal, right: Decimal) -> Decimal:
    _refuse_zero(right)
    return left / right


def _floor_divide(left: Decimal, right: Decimal) -> Decimal:
    return _floored(left, right)[0]


def _modulo(left: Decimal, right: Decimal) -> Decimal:
    return _floored(left, right)[1]


def _floored(left: Decimal, right: Decimal) -> tuple[Decimal, Decimal]:
    _refuse_zero(right)
    try:
        quotient, remainder = divmod(left, right)
    except InvalidOperation:
        raise ExpressionError("The quotient has too many digits for // and %.") from None
    # Decimal truncates towards zero.
    if remainder and (remainder < 0) != (right < 0):
        return quotient - 1, remainder + right
    return quotient, remainder


def _refuse_zero(divisor: Decimal) -> None:
    if not divisor:
        raise ExpressionError("Division by zero.")


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    if not base and exponent <= 0:
        raise ExpressionError("0 has no power of zero or less.")
    if base < 0 and exponent != exponent.to_integral_value():
        raise ExpressionError("A negative number has only whole powers.")
    # The context's bounds make this cheap for any operands: it works on 110 digits, and knows from
    # the logarithms that a result is out of range.
    return base**exponent


_PRODUCT: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "*": lambda left, right: left * right,
    "/": _divide,
    "//": _floor_divide,
    "%": _modulo,
}


def _absolute(arguments: list[Decimal]) -> Decimal:
    return abs(_only("abs", arguments))


def _square_root(arguments: list[Decimal]) -> Decimal:
    value = _only("sqrt", arguments)
    if value < 0:
        raise ExpressionError("sqrt of a negative number is not a real number.")
    return value.sqrt()


def _only(name: str, arguments: list[Decimal]) -> Decimal:
    if len(arguments) != 1:
        raise ExpressionError(f"{name} takes one argument, not {len(arguments)}.")
    return arguments[0]


def _round(arguments: list[Decimal]) -> Decimal:
    if len(arguments) > 2:
        raise ExpressionError("round takes a number and, at most, the places to keep.")
    places = arguments[1] if len(arguments) == 2 else Decimal(0)
    if places != places.to_integral_value() or abs(places) > _MAX_PLACES:
        raise ExpressionError(f"round keeps a whole number of places, at most {_MAX_PLACES}.")
    unit = Decimal(1).scaleb(-int(places))
    if abs(arguments[0]).adjusted() + int(places) >= _EXACT.prec - 1:
        return arguments[0]  # It has no digits that far right: there is nothing to round.
    return arguments[0].quantize(unit, rounding=ROUND_HALF_UP)


_FUNCTIONS: Final[dict[str, Callable[[list[Decimal]], Decimal]]] = {
    "abs": _absolute,
    "max": max,
    "min": min,
    "round": _round,
    "sqrt": _square_root,
}


def _notation(value: Decimal) -> str:
    if not value:
        return "0"  # Also for a negative zero.
    if value == value.to_integral_value():
        return format(value.to_integral_value(), "f")
    shown = value.normalize(_SHOWN)
    padded = shown.adjusted() >= _SHOWN.prec or shown.adjusted() < -_SHOWN.prec
    return format(shown, "e" if padded else "f")
