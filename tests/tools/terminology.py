"""Check prose and names against the word list of docs/glossary.md.

Usage: python tests/tools/terminology.py [--count] [PATH ...]

The list is the last fenced block of docs/glossary.md: one pattern per line, then ``#`` and what to
use instead. A hit is allowed if a phrase of ``docs/glossary-allowed.txt`` covers it: one regular
expression per line, after ``PATH-GLOB:`` if it holds for those files alone. Prints the hits that
are not allowed as ``path:line: word (use …): text``; exit status 1 if there are any. A phrase that
allows nothing any more is reported, too.
"""

import fnmatch
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = "docs/glossary.md"
ALLOWED = "docs/glossary-allowed.txt"
CHECKED = (
    "platform", "tests", "bench", "docs", "README.md", "CONTRIBUTING.md", "manifests",
    "changelog.d", "Makefile", ".ci", "pyproject.toml",
)  # fmt: skip
EXCLUDED = (GLOSSARY, ALLOWED, "tests/data/*", "*.json", "*.jsonl", "*.sum", "*.mod", "*.svg")
"""Other texts than ours: recordings, generated tables, and the list itself."""

Phrases = list[tuple[str, re.Pattern[str]]]


def word_list() -> list[tuple[re.Pattern[str], str]]:
    """Return the patterns with what to use instead."""
    block = (ROOT / GLOSSARY).read_text().rpartition("```text\n")[2].partition("```")[0]
    rows = (line.partition("#") for line in block.splitlines() if line.strip())
    return [
        (re.compile(rf"(?<!\w)(?:{pattern.strip()})(?!\w)", re.IGNORECASE), instead.strip())
        for pattern, _, instead in rows
    ]


def allowed_phrases() -> Phrases:
    """Return the allowed phrases, each with the glob of the files that it holds for."""
    phrases: Phrases = []
    for line in (ROOT / ALLOWED).read_text().splitlines():
        if line and not line.startswith("#"):
            head, colon, rest = line.partition(": ")
            glob, text = (head, rest) if colon and ("/" in head or "*." in head) else ("*", line)
            phrases.append((glob, re.compile(text, re.IGNORECASE)))
    return phrases


def files(paths: list[str]) -> Iterator[str]:
    """Yield the tracked text files below *paths*."""
    command = ["git", "ls-files", "-z", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        file = ROOT / path
        excluded = any(fnmatch.fnmatch(path, glob) for glob in EXCLUDED)
        if file.is_file() and not file.is_symlink() and not excluded:
            yield path


def main(arguments: list[str]) -> int:
    """Print the hits, or with ``--count`` how many each file has; return the exit status."""
    paths = [each for each in arguments if each != "--count"]
    words, phrases = word_list(), allowed_phrases()
    used: set[int] = set()
    counts: Counter[str] = Counter()
    for path in files(paths or list(CHECKED)):
        allowed = [each for each in enumerate(phrases) if fnmatch.fnmatch(path, each[1][0])]
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1):
            for word, instead in _hits(line, words, allowed, used):
                counts[path] += 1
                if "--count" not in arguments:
                    print(f"{path}:{number}: {word} (use {instead}): {line.strip()}")
    if "--count" in arguments:
        for path, count in counts.most_common():
            print(f"{count:6} {path}")
    unused = [] if paths else [each for each in range(len(phrases)) if each not in used]
    for index in unused:
        print(f"{ALLOWED}: allows nothing: {phrases[index][1].pattern}")
    print(f"{sum(counts.values())} words of the list in {len(counts)} files", file=sys.stderr)
    return 1 if counts or unused else 0


def _hits(
    line: str,
    words: list[tuple[re.Pattern[str], str]],
    phrases: list[tuple[int, tuple[str, re.Pattern[str]]]],
    used: set[int],
) -> Iterator[tuple[str, str]]:
    for pattern, instead in words:
        for match in pattern.finditer(line):
            if not _is_allowed(line, match, phrases, used):
                yield match[0], instead


def _is_allowed(
    line: str,
    hit: re.Match[str],
    phrases: list[tuple[int, tuple[str, re.Pattern[str]]]],
    used: set[int],
) -> bool:
    for index, (_, phrase) in phrases:
        for match in phrase.finditer(line):
            if match.start() <= hit.start() and hit.end() <= match.end():
                used.add(index)
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
