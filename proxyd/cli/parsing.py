"""Options and values that several parsers of the command line have."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = argparse._SubParsersAction

NUMBER_MAX = 10**18 - 1
LIST_MAX = 1_000
PORT_MAX = 65_535
WITHIN_MAX = 3_600  # a search reads each hour that this touches


class Topics(Commands):
    """The first words of all commands. A topic gets the parsers of its commands when it is called.

    The parsers of all topics take 20 ms.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401 - of argparse
        super().__init__(*arguments, **settings)
        self._fill_by_name: dict[str, Callable[[argparse.ArgumentParser], None]] = {}

    def add(self, name: str, words: str, fill: Callable[[argparse.ArgumentParser], None]) -> None:
        """Add a topic.

        Args:
            name: the word.
            words: its line in the list of topics.
            fill: adds its options, or its commands, to its parser.
        """
        self.add_parser(name, help=words)
        self._fill_by_name[name] = fill

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        """Parse the words behind a topic."""
        assert isinstance(values, list)  # noqa: S101 - the words from the topic on
        fill = self._fill_by_name.pop(values[0], None)
        if fill is not None:
            fill(self.choices[values[0]])
        super().__call__(parser, namespace, values, option)


def commands_of(topic: argparse.ArgumentParser) -> Commands:
    """Return the place for the commands of a topic."""
    return topic.add_subparsers(metavar="COMMAND", required=True)


def finish(parser: argparse.ArgumentParser, command: str) -> None:
    """Complete the parser of a command; its name is a key of a table `COMMANDS`."""
    add_config(parser)
    parser.set_defaults(command=command)


def add_config(parser: argparse._ActionsContainer) -> None:
    """Add the file of the settings."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, in TOML")


def add_amounts(parser: argparse.ArgumentParser) -> None:
    """Add an amount of each currency."""
    parser.add_argument(
        "--usd", type=amount, default=0, metavar="X", help="US dollars, such as 20 or 0.5"
    )
    parser.add_argument(
        "--credits", type=amount, default=0, metavar="Y", help="credits, such as 100"
    )


def amount(text: str) -> int:
    """Return an amount of money, in micro-units."""
    from decimal import Decimal, InvalidOperation

    from market.money.money import MICRO, UNITS_MAX, micro

    try:
        text.encode("ascii")  # Decimal also reads the digits of other scripts
        given = Decimal(text)
        if given.is_finite() and given >= UNITS_MAX:
            raise argparse.ArgumentTypeError(
                f"{text!r} is too large: an amount is less than {UNITS_MAX}"
            )
        exact = micro(given)
    except (InvalidOperation, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an amount: a number from 0, with at most six decimals"
        ) from None
    if exact != given * MICRO:
        raise argparse.ArgumentTypeError(f"{text!r} has more than six decimals")
    return exact


def signed_amount(text: str) -> int:
    """Return an amount of money with its sign, in micro-units."""
    sign = -1 if text.startswith("-") else 1
    return sign * amount(text[1:] if text[:1] in ("+", "-") else text)


def count(text: str) -> int:
    """Return a number from 1."""
    return _whole_number(text, NUMBER_MAX, "a number from 1")


DEFAULT = -1  # of a limit: the service's value


def bound(text: str) -> int:
    """Return a limit: a number from 1, 0 for none, or `DEFAULT`."""
    words = {"none": 0, "default": DEFAULT}
    if text in words:
        return words[text]
    return _whole_number(text, NUMBER_MAX, "a number from 1, none, or default")


def identifier(text: str) -> str:
    """Return an identifier of a row, in its canonical spelling."""
    from market.base.ids import parsed

    try:
        return parsed(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an identifier") from None


def percent(text: str) -> int:
    """Return a percentage from 1, or `DEFAULT`."""
    if text == "default":
        return DEFAULT
    return _whole_number(text, NUMBER_MAX, "a percentage from 1, or default")


def part(text: str) -> int:
    """Return a percentage that is neither nothing nor all."""
    return _whole_number(text, 99, "a percentage from 1 to 99")


def claimed_part(text: str) -> int:
    """Return a percentage of a claim that succeeds: at least a part, at most all."""
    return _whole_number(text, 100, "a percentage from 1 to 100")


def number(text: str) -> int:
    """Return the number of an act in the log."""
    return _whole_number(text, NUMBER_MAX, "the number of an act")


def limit(text: str) -> int:
    """Return the number of rows of a list."""
    return _whole_number(text, LIST_MAX, f"a number from 1 to {LIST_MAX}")


def add_limit(command: argparse.ArgumentParser, rows: str) -> None:
    """Add the option for the number of rows of a list, 50 without it."""
    command.add_argument(
        "--limit", type=limit, default=50, metavar="N", help=f"number of {rows}, 50 by default"
    )


def port(text: str) -> int:
    """Return a port."""
    return _whole_number(text, PORT_MAX, f"a port from 1 to {PORT_MAX}")


def within(text: str) -> int:
    """Return the error of a time in a complaint, in seconds."""
    return _whole_number(text, WITHIN_MAX, f"a number of seconds from 1 to {WITHIN_MAX}")


def _whole_number(text: str, most: int, words: str) -> int:
    """Return a number from 1 to `most`, whose description for an error is `words`."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}, in digits alone")
    digits = text.lstrip("0")
    if len(digits) > len(str(most)) or int(digits or 0) > most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}: it is at most {most}")
    if not digits:
        raise argparse.ArgumentTypeError(f"{text!r} is not {words}")
    return int(digits)


def text(argument: str) -> str:
    """Return an argument that is UTF-8 text."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("not UTF-8 text") from None
    return argument
