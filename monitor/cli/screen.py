"""Tables and coloured texts on the terminal: rich, through which no foreign text reaches it as a command."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from monitor.cli.terminal import visible


class Screen(Console):
    """rich's console, which shows the control characters of texts instead of passing them on."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Texts come here on their way to every other renderable's lines; what rich itself controls does not."""
        if isinstance(renderable, str):
            renderable = visible(renderable)
        elif isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = visible(renderable.plain)
        return super().render(renderable, options)
