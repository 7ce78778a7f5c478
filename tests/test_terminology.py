"""The check of prose against the word list of docs/glossary.md."""

import pytest
from tools import terminology

PAGE = """# Glossary

```text
an earlier block # ignored
```

```text
folders?          # directory
let (in|go)       # admit
```
"""


def check(text: str, allowed: str = "", path: str = "docs/page.md") -> list[str]:
    words = terminology.parse_words(PAGE)
    phrases = terminology.parse_phrases(allowed)
    return [
        f"{hit.line} {hit.word} {hit.instead}"
        for hit in terminology.check(path, text, words, phrases)
    ]


def test_hit_names_line_word_and_replacement() -> None:
    assert check("A directory.\nTwo Folders, let in.") == ["2 Folders directory", "2 let in admit"]


@pytest.mark.parametrize("name", ["folder_of_mail", "_FOLDER_NAME", "FolderOfMail", "HTTPFolders"])
def test_names_in_code_are_split_into_words(name: str) -> None:
    text = f"{name} = load()"
    assert len(check(text, path="platform/mail.py")) == 1
    assert len(check(text, path="tests/test_mail.py")) == 1
    assert check(f"def test_{name}() -> None:", path="tests/test_mail.py") == []
    assert check(text, name, path="platform/mail.py") == []
    assert check("subfolder_of_mail = load()", path="platform/mail.py") == []


def test_words_are_matched_whole() -> None:
    assert check("subfolders, data_folder, let them in") == []


@pytest.mark.parametrize(
    ("allowed", "hits"),
    [
        ("mail folder", []),
        ("docs/*: mail folder", []),
        ("tests/*: mail folder", ["1 folder directory"]),
        ("*.md: mail", ["1 folder directory"]),
        ("# mail folder", ["1 folder directory"]),
    ],
)
def test_phrase_allows_words_that_it_covers_in_its_files(allowed: str, hits: list[str]) -> None:
    assert check("A mail folder.", allowed) == hits


def test_phrase_does_not_allow_the_rest_of_its_line() -> None:
    assert check("A mail folder in a folder.", "mail folder") == ["1 folder directory"]


def test_phrase_records_its_use() -> None:
    phrases = terminology.parse_phrases("mail folder\nnews folder\n")
    list(terminology.check("a.md", "mail folder", terminology.parse_words(PAGE), phrases))
    assert [phrase.is_used for phrase in phrases] == [True, False]
