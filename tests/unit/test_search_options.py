"""An option of a search is said once: one that is added there is everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pgrag import config
from pgrag.config import SearchOptions, Settings
from pgrag.search.options import NAMES, query_options, retrieve_parameters
from tests.support.limits import PROGRAM_SECONDS

ADDED = """
import json, sys, types
from pathlib import Path

source = Path({file!r}).read_text("utf-8")
place = "    hops: int = "
assert source.count(place) == 1
source = source.replace(place, "    zeal: int = search_option(3, 'how hard to look', ge=0, le=9)\\n" + place)
module = types.ModuleType("pgrag.config")
sys.modules["pgrag.config"] = module
exec(compile(source, "config.py", "exec"), module.__dict__)

from pgrag import SearchOptions, Settings, UsageError, load_settings
from pgrag.cli.app import build_app
from pgrag.evaluate.variants import grid
from pgrag.search.options import query_options, retrieve_parameters
import typer.main

found = {{"setting": load_settings({{}}, environ={{"PGRAG_ZEAL": "5"}}).zeal}}
options = query_options(Settings(), "mix", {{"zeal": 7}})
found["argument"] = options.zeal
found["retrieve"] = retrieve_parameters(options)["zeal"]
found["grid"] = [variant.label for variant in grid(Settings(), ["mix"], {{"zeal": ["1", "2"]}})]
try:
    query_options(Settings(), "mix", {{"zeal": 10}})
except UsageError as error:
    found["limit"] = str(error)
command = typer.main.get_command(build_app()).get_command(None, "query")
[option] = [p for p in command.params if p.name == "zeal"]
found["cli"] = [option.opts, option.help]
print(json.dumps(found))
"""


def test_an_option_that_is_added_is_everywhere() -> None:
    assert config.__file__ is not None
    program = ADDED.format(file=str(Path(config.__file__)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "setting": 5,
        "argument": 7,
        "retrieve": 7,
        "grid": ["mix zeal=1", "mix zeal=2"],
        "limit": "query option zeal: Input should be less than or equal to 9",
        "cli": [["--zeal"], "How hard to look (default 3)."],
    }


def test_all_options_are_settings_and_parameters_of_retrieve() -> None:
    assert set(NAMES) <= set(Settings.model_fields)
    options = query_options(Settings(), "mix", {"top_k": 7, "max_total_tokens": None})
    assert (options.top_k, options.max_total_tokens) == (7, SearchOptions().max_total_tokens)
    assert retrieve_parameters(options) == {
        "top_k": 7, "chunk_top_k": 20, "ranking": "pagerank", "lexical": 0.2, "nearness": None, "degree_cap": 32,
        "hops": 1, "entity_tokens": 6000, "relation_tokens": 8000, "total_tokens": 30_000,
    }  # fmt: skip
