"""How verbs are grouped: under headings in the help, and beside a list that needs no verb."""

from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource


class Headed(click.Group):
    """A group whose help shows its commands under headings, in the order in which they came."""

    def __init__(self, name: str | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self._headings: list[tuple[str, list[str]]] = []

    def add_under(self, heading: str, commands: Sequence[click.Command]) -> None:
        """Add commands under a heading of their own."""
        self._headings.append((heading, [str(command.name) for command in commands]))
        for command in commands:
            self.add_command(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every heading with its commands and what they do."""
        indent = max(len(name) for _, names in self._headings for name in names)
        for heading, names in self._headings:
            rows = [
                (name.ljust(indent), self.commands[name].get_short_help_str(formatter.width))
                for name in names
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)


class Listing(click.Group):
    """A group that lists where no verb is named; an option before a verb would be lost."""

    def __init__(self, name: str | None = None, **options: Any) -> None:
        super().__init__(name, invoke_without_command=True, **options)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; an option that stands before it is a usage error."""
        found = super().resolve_command(ctx, args)
        for parameter in self.params:
            source = ctx.get_parameter_source(str(parameter.name))
            if source is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
                option = max(parameter.opts, key=len)
                raise click.UsageError(
                    f"options come after the verb: {ctx.command_path} {found[0]} {option} ...", ctx
                )
        return found
