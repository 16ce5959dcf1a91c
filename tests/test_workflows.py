"""What runs elsewhere is what runs here: the workflows of `.github` call the commands of the Makefile."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
CHECKS = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text("utf-8"))
JOBS = CHECKS["jobs"]


def commands(job):
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_all_is_tested_with_every_python_that_is_promised():
    pythons = JOBS["everything"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert [f"3.{n}" for n in range(11, 11 + len(pythons))] == pythons
    assert any(command.startswith("make test") for command in commands("everything"))


def test_other_systems_run_what_make_check_runs():
    [recipe] = re.findall(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), flags=re.M)
    [quick] = re.findall(r"-m (pytest tests .*?) &&", recipe)
    assert commands("quick")[-1] == f"python -m {quick}"
    assert {"ruff check .", "mypy"} < set(commands("quick"))


def test_no_job_may_more_than_it_needs():
    assert CHECKS["permissions"] == {"contents": "read"} and CHECKS["concurrency"]["group"]
    assert {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job} == {
        "publish": {"pages": "write", "id-token": "write"}}  # fmt: skip
    assert all(job["timeout-minutes"] for job in JOBS.values())
    for job in JOBS.values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False


def test_the_site_is_published_after_all_checks_and_names_its_repository(tmp_path):
    assert JOBS["publish"]["needs"] == "site" and JOBS["site"]["needs"] == "everything"
    assert "refs/heads/main" in JOBS["site"]["if"]
    [command] = [command for command in commands("site") if command.startswith("sed")]
    pattern, new = re.search(r's\|(.*?)\|(.*?)\|"', command).groups()
    new = new.replace("$GITHUB_SERVER_URL/$GITHUB_REPOSITORY", "https://example.org/some/course")
    text, count = re.subn(pattern, new, (ROOT / "_config.yml").read_text("utf-8"), flags=re.M)
    options = yaml.safe_load(text)["sphinx"]["config"]["html_theme_options"]
    assert count == 1 and options["repository_url"] == "https://example.org/some/course"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actionlint_finds_nothing(path):
    actionlint = Path(sys.executable).with_name("actionlint")
    if not actionlint.exists():
        pytest.skip("actionlint is not installed")
    done = subprocess.run([actionlint, path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
