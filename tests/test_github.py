"""Workflows, issue forms and the conda recipe: that they are what their programs read, and agree with pyproject.toml and the code."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from gputop.cli import COMMANDS, make_parser
from gputop.system.program import __version__

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).resolve().parent.parent
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def load(path: Path) -> Any:
    """A YAML file; GitHub's ``on`` is a word, YAML's a truth."""
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in loaded.items()}


def steps(workflow: Any) -> list[tuple[str, Any]]:
    """Name of the job and step."""
    return [(name, step) for name, job in workflow["jobs"].items() for step in job["steps"]]


@pytest.mark.parametrize("name", ["ci", "publish"])
def test_a_workflow_runs_the_suite_and_what_exists(name: str) -> None:
    workflow = load(ROOT / f".github/workflows/{name}.yml")
    told = [step["run"] for _, step in steps(workflow) if "run" in step]
    assert "sudo .ci/run" in told
    for path in re.findall(r"(?:^| )((?:\.ci|scripts)/[\w.-]+)", " ".join(told)):
        assert (ROOT / path).exists(), path
    for target in re.findall(r"\bmake ([a-z-]+)", " ".join(told)):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
    assert workflow["permissions"] == {"contents": "read"}
    assert all(re.fullmatch(r"[\w./-]+@[\w./]+", step["uses"]) for _, step in steps(workflow) if "uses" in step)
    needs = [job.get("needs", []) for job in workflow["jobs"].values()]
    assert {one for need in needs for one in ([need] if isinstance(need, str) else need)} <= set(workflow["jobs"])


def test_only_a_tag_publishes_and_only_after_the_suite() -> None:
    """By trusted publishing: the job that uploads may get an identity, and no secret is named."""
    text = (ROOT / ".github/workflows/publish.yml").read_text()
    workflow = load(ROOT / ".github/workflows/publish.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    (job,) = [name for name, step in steps(workflow) if step.get("uses", "").startswith("pypa/gh-action-pypi-publish")]
    assert {"suite", "build"} <= set(workflow["jobs"][job]["needs"])
    assert [name for name, one in workflow["jobs"].items() if one.get("permissions", {}).get("id-token") == "write"] == [job]
    assert "secrets." not in text
    assert "pypi" not in (ROOT / ".github/workflows/ci.yml").read_text().lower()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_asks_for_commands_that_exist(path: Path) -> None:
    form = load(path)
    if path.stem == "config":
        assert all(link["url"].startswith("https://") for link in form["contact_links"])
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert ids
    assert len(ids) == len(set(ids))
    assert {part["type"] for part in form["body"]} <= {"markdown", "input", "textarea", "dropdown", "checkboxes"}
    for words in re.findall(r"gputop ((?!-)[a-z]+(?: --[a-z-]+)*)", path.read_text(encoding="utf-8")):
        command, *flags = words.split()
        if command in COMMANDS:
            assert {flag for action in make_parser(command)[0]._actions for flag in action.option_strings} >= set(flags), words


def test_a_wrong_verdict_is_told_with_a_bundle() -> None:
    (form,) = [load(path) for path in FORMS if "got this job wrong" in path.read_text(encoding="utf-8")]
    (bundle,) = [part for part in form["body"] if part.get("id") == "bundle"]
    assert "gputop doctor --bundle" in bundle["attributes"]["description"]
    assert bundle["validations"]["required"]


def test_the_conda_recipe_has_the_requirements_of_pyproject() -> None:
    text = (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    assert recipe["context"]["version"] == __version__
    assert recipe["about"]["homepage"] == PROJECT["project"]["urls"]["Source"]
    asked = {one.name: one.specifier for one in map(Requirement, PROJECT["project"]["dependencies"])}
    given = [one.partition(" ") for one in recipe["requirements"]["run"][2:]]
    assert {name: SpecifierSet(bounds) for name, _, bounds in given} == asked
    assert {one.replace(" ", "") for one in recipe["requirements"]["host"][2:]} == set(PROJECT["build-system"]["requires"])
    scripts = dict(line.split(" = ") for line in recipe["build"]["python"]["entry_points"])
    assert scripts == PROJECT["project"]["scripts"]
