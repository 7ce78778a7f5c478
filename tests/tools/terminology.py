"""Check prose and names against the word list of docs/glossary.md.

Usage: python tests/tools/terminology.py [--count] [PATH ...]

The list is the last fenced block of docs/glossary.md: one pattern per line, then ``#`` and what to
use instead. In Python code, names of several words are checked word by word, except those of test
functions, which are sentences. A hit is allowed if a phrase of ``docs/glossary-allowed.txt`` covers
it, or is the whole name: one regular expression per line, after ``PATH-GLOB:`` if it holds for
those files alone. Prints the hits that are not allowed as ``path:line: word (use …): text``; exit
status 1 if there are any. A check of the whole repository also reports the phrases that allow
nothing.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = "docs/glossary.md"
ALLOWED = "docs/glossary-allowed.txt"
CHECKED = (
    "platform", "tests", "bench", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md",
    "changelog.d", "manifests", "Makefile", "Dockerfile", ".ci", "pyproject.toml",
)  # fmt: skip
EXCLUDED = (
    GLOSSARY, ALLOWED, "tests/tools/terminology.py", "tests/test_terminology.py",
    "tests/data/*", "*.json", "*.jsonl", "*.sum", "*.mod", "*.svg", "*.css", "*.png",
    "*.min.js",
)  # fmt: skip
"""The list and its checker; recordings and generated tables."""
NAMES_CHECKED = ("platform/*.py", "bench/*.py", "tests/*.py")
"""Files in which names are split into words."""

_NAME = re.compile(r"(?!test_)\b\w*[a-zA-Z]\w*")
_BETWEEN_WORDS = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class Word:
    """A pattern of the list, and what to use instead."""

    pattern: re.Pattern[str]
    instead: str


@dataclass
class Phrase:
    """An allowed phrase."""

    glob: str
    pattern: re.Pattern[str]
    is_used: bool = False

    def covers(self, line: str, hit: re.Match[str]) -> bool:
        """Report whether the phrase occurs in *line* around *hit*, and record that it was used."""
        found = any(
            match.start() <= hit.start() and hit.end() <= match.end()
            for match in self.pattern.finditer(line)
        )
        self.is_used |= found
        return found

    def is_name(self, name: str) -> bool:
        """Report whether the phrase is *name*, and record that it was used."""
        found = self.pattern.fullmatch(name) is not None
        self.is_used |= found
        return found


@dataclass(frozen=True)
class Hit:
    """A word of the list that no phrase allows."""

    path: str
    line: int
    word: str
    instead: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word} (use {self.instead}): {self.text}"


def parse_words(page: str) -> list[Word]:
    """Return the list in the last fenced block of *page*."""
    block = page.rpartition("```text\n")[2].partition("```")[0]
    rows = (line.partition("#") for line in block.splitlines() if line.strip())
    return [
        Word(re.compile(rf"(?<!\w)(?:{row.strip()})(?!\w)", re.IGNORECASE), instead.strip())
        for row, _, instead in rows
    ]


def parse_phrases(text: str) -> list[Phrase]:
    """Return the allowed phrases, each with the glob of the files that it holds for."""
    phrases = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            glob, colon, phrase = line.partition(": ")
            if not (colon and re.fullmatch(r"[\w*.-]*[/.][\w*./-]*|Makefile|Dockerfile", glob)):
                glob, phrase = "*", line
            phrases.append(Phrase(glob, re.compile(phrase, re.IGNORECASE)))
    return phrases


def check(path: str, text: str, words: list[Word], phrases: list[Phrase]) -> Iterator[Hit]:
    """Yield the words of the list in *text* that no phrase for *path* allows."""
    allowed = [phrase for phrase in phrases if fnmatch(path, phrase.glob)]
    splits_names = any(fnmatch(path, glob) for glob in NAMES_CHECKED)
    any_word = re.compile("|".join(word.pattern.pattern for word in words), re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), start=1):
        for word in words if any_word.search(line) else ():
            for match in word.pattern.finditer(line):
                if not any(phrase.covers(line, match) for phrase in allowed):
                    yield Hit(path, number, match[0], word.instead, line.strip())
        for name in _NAME.findall(line) if splits_names else ():
            split = _BETWEEN_WORDS.sub(" ", name).strip()
            for word in words if " " in split and any_word.search(split) else ():
                for match in word.pattern.finditer(split):
                    if not any(
                        phrase.is_name(name) or phrase.covers(split, match) for phrase in allowed
                    ):
                        yield Hit(path, number, match[0], word.instead, name)


def files(paths: list[str]) -> Iterator[str]:
    """Yield the tracked text files below *paths*."""
    command = ["git", "ls-files", "-z", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(None, listed.split("\0")):
        file = ROOT / path
        excluded = any(fnmatch(path, glob) for glob in EXCLUDED)
        if file.is_file() and not file.is_symlink() and not excluded:
            yield path


def main(arguments: list[str]) -> int:
    """Print the hits, or with ``--count`` how many each file has; return the exit status."""
    paths = [each for each in arguments if each != "--count"]
    words = parse_words((ROOT / GLOSSARY).read_text())
    phrases = parse_phrases((ROOT / ALLOWED).read_text())
    hits = [
        hit
        for path in files(paths or list(CHECKED))
        for hit in check(path, (ROOT / path).read_text(), words, phrases)
    ]
    if "--count" in arguments:
        for path, count in Counter(hit.path for hit in hits).most_common():
            print(f"{count:6} {path}")
    else:
        print(*hits, sep="\n", end="\n" if hits else "")
    unused = [] if paths else [phrase for phrase in phrases if not phrase.is_used]
    for phrase in unused:
        print(f"{ALLOWED}: allows nothing: {phrase.pattern.pattern}")
    if hits:
        print(f"{len(hits)} words of the list in {len({hit.path for hit in hits})} files")
    return 1 if hits or unused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
