"""`make story`: play the story of docs/howto/story.md on the platform that is up, and say what happens."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from story import Story, StoryError

from updraft.client import Client
from updraft.exceptions import UpdraftError
from updraft.stack.layout import find_home


def main() -> int:
    console = Console(highlight=False)
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.0f} s[/dim]  {text}", soft_wrap=True)

    home = find_home()
    try:
        with Client() as client, console.status("The story plays; each step waits for the next minute"):
            Story(client, home.root, home.repository, say).play()
            found = client.series_of("story")
    except (StoryError, UpdraftError) as exc:
        console.print(f"[red]{exc}[/red]", soft_wrap=True)
        return 1
    say(f"Version {found.champion} is the champion. `updraft series story` shows all of it.")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())
