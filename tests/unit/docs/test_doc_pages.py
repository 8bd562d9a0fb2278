"""The pages of the documentation: which test runs their commands, and whether their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pages
import pytest
import yaml
from pages import REPOSITORY

OWN_TESTS = {
    # pages for people who run a platform, and the test that holds their blocks to be run
    "docs/howto/client.md": "tests/system/test_client_page.py",
    "docs/howto/cluster.md": "tests/unit/cluster/test_cluster_page.py",
    "docs/howto/compose.md": "tests/containers/test_compose_stack.py",
    "docs/howto/dependencies.md": "tests/system/test_any_program.py",
    "docs/howto/data.md": "tests/system/test_streamed_data.py",
    "docs/howto/horovod.md": "tests/system/test_horovod.py",
    "docs/howto/models.md": "tests/system/test_approval.py",
    "docs/howto/queue.md": "tests/unit/cli/test_cli_queue.py",
    "docs/howto/elastic.md": "tests/system/test_elastic.py",
    "docs/howto/simulate.md": "tests/unit/cli/test_cli_simulate.py",
    "docs/howto/train-on-texts.md": "tests/unit/manifest/test_manifest_task.py",
    "docs/howto/shared-memory.md": "tests/learner/test_shared_memory_torch.py",
    "docs/howto/tenants.md": "tests/unit/cli/test_cli_tenants.py",
    "docs/howto/story.md": "tests/system/test_story.py",
    "docs/howto/metrics.md": "tests/system/test_collected_metrics.py",
    "docs/howto/pods.md": "tests/unit/manifest/test_pods_page.py",
    "docs/howto/ffdl.md": "tests/system/test_public_programs.py",
    "docs/howto/public-programs.md": "tests/system/test_public_programs.py",
    "docs/howto/deploy.md": "tests/unit/deploy/test_deploy_page.py",
}
NO_COMMANDS = {"yaml", "json", "python", "text"}
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY))
    for path in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/**/*.md")]
)
_LINK = re.compile(r"(?<!`)!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def test_each_page_belongs_to_a_test_that_runs_its_commands() -> None:
    howto = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs" / "howto").glob("*.md")}
    assert howto | {"README.md"} == set(pages.PAGES) | set(OWN_TESTS)
    for page, test in OWN_TESTS.items():
        assert Path(page).name in (REPOSITORY / test).read_text() or Path(page).stem in test


def test_every_block_is_commands_that_a_test_runs_or_no_commands() -> None:
    """Nothing is left out today; a block that has to be begins with pages.NOT_HERE, and stands here with its reason."""
    found = [block for page in pages.PAGES for block in pages.blocks(page)]
    assert [block for block in found if not block.language] == [], "say sh for commands, text for what is printed"
    assert {block.language for block in found} <= NO_COMMANDS | set(pages.SHELL)
    left_out = [block for block in found if block.language in pages.SHELL and not block.is_commands]
    assert left_out == []


def test_the_manifest_of_the_readme_is_that_of_the_example() -> None:
    [shown] = [block for block in pages.blocks("README.md") if block.language == "yaml"]
    example: dict[str, Any] = yaml.safe_load((REPOSITORY / "jobs" / "digits-cnn" / "manifest.yaml").read_text())
    for left_out in ("description", "env"):
        example.pop(left_out)
    assert yaml.safe_load(shown.text) == example


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_inside_the_repository_leads_somewhere(document: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (REPOSITORY / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in _LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (REPOSITORY / document).parent / path if path else REPOSITORY / document
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text()), target


def anchors(text: str) -> set[str]:
    """As GitHub makes them: lower case, no punctuation, hyphens for spaces, a number where a heading comes again."""
    found: set[str] = set()
    for heading in _HEADING.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = sum(1 for known in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", known))
        found.add(f"{name}-{number}" if number else name)
    return found
