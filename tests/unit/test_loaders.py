from __future__ import annotations

import io
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import pgrag.documents.loaders
from pgrag.documents.loaders import SkippedFile, load, load_stdin
from pgrag.types import Document, DocumentFailure


def one(path: Path, data: bytes | str) -> Document:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    (found,) = load(path)
    assert isinstance(found, Document), found
    return found


def failure(path: Path, data: bytes | str) -> DocumentFailure:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    (found,) = load(path)
    assert isinstance(found, DocumentFailure), found
    assert found.uri.startswith(path.as_uri())
    assert "\n" not in found.error
    return found


# ---------------------------------------------------------------- text


def test_text_file(tmp_path: Path) -> None:
    document = one(tmp_path / "a b.txt", "One.\r\nTwo.\rThree.\n")
    assert document == Document(uri=(tmp_path / "a b.txt").as_uri(), body="One.\nTwo.\nThree.\n")
    assert document.uri.endswith("/a%20b.txt")


@pytest.mark.parametrize("suffix", [".text", ".log", ".rst", "", ".py"])
def test_a_file_named_itself_is_read_whatever_its_suffix(tmp_path: Path, suffix: str) -> None:
    assert one(tmp_path / f"file{suffix}", "Hello.").body == "Hello."


def test_form_feeds_are_pages(tmp_path: Path) -> None:
    assert one(tmp_path / "a.txt", "One\fTwo\fThree").page_starts == (0, 4, 8)
    assert one(tmp_path / "a.txt", "One").page_starts == ()


CHINESE = "支付平台在周二凌晨升级了数据库，这是因为旧的版本不能再用了。我们的人都在现场。"


@pytest.mark.parametrize(
    "data",
    [
        CHINESE.encode(),
        b"\xef\xbb\xbf" + CHINESE.encode(),
        CHINESE.encode("utf-16"),
        b"\xfe\xff" + CHINESE.encode("utf-16-be"),
        CHINESE.encode("gb18030"),
    ],
)
def test_encodings(tmp_path: Path, data: bytes) -> None:
    assert one(tmp_path / "a.txt", data).body == CHINESE


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Le café est fermé. " * 20, "latin-1"),
        ("Платёжный сервис перестал отвечать ночью. " * 20, "cp1251"),
        ("결제 서비스가 밤에 응답을 멈췄습니다. 팀이 다시 시작했습니다. " * 20, "euc-kr"),
        ("支付平台在週二凌晨升級了資料庫，這是因為舊的版本不能再用了。" * 20, "big5"),
    ],
)
def test_other_encodings_are_refused_not_guessed(tmp_path: Path, text: str, encoding: str) -> None:
    assert "is not UTF-8 text (byte 0x" in failure(tmp_path / "a.txt", text.encode(encoding)).error


def test_empty_binary_and_unreadable_files(tmp_path: Path) -> None:
    assert failure(tmp_path / "a.txt", "").error == "is empty"
    assert failure(tmp_path / "a.md", " \n\t\x00").error == "is a binary file, not text"
    assert failure(tmp_path / "a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").error == "is a binary file, not text"
    assert failure(tmp_path / "b.png", "a\0b\0c\0").error == "is a binary file, not text"
    assert failure(tmp_path / "c.txt", b"\xff\xfea").error.startswith("begins like UTF-16")
    assert [*load(tmp_path / "no.txt")] == [DocumentFailure((tmp_path / "no.txt").as_uri(), "does not exist")]


def test_a_file_without_the_right_to_read() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which only its owner may enter
        Path(folder).chmod(0o755)
        path = Path(folder).resolve() / "a.txt"
        path.write_text("secret")
        path.chmod(0)
        try:
            if user == 0:
                os.seteuid(65534)  # root may read everything
            found = [*load(path)]
        finally:
            os.seteuid(user)
        assert found == [DocumentFailure(path.as_uri(), "cannot be read: Permission denied")]


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (found,) = load(tmp_path / "pipe.txt")
    assert isinstance(found, DocumentFailure)
    assert found.error == "is no regular file"
    assert [*load(tmp_path)] == [SkippedFile(str(tmp_path / "pipe.txt"), "is no regular file")]


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("wb") as stream:
        stream.truncate(pgrag.documents.loaders.MAX_BYTES + 1)
    (found,) = load(path)
    assert isinstance(found, DocumentFailure)
    assert found.error == "has 200 MB; a document may have 200 MB: split it"


@pytest.mark.parametrize("name", ["a\0b.txt", "\ud83d.txt", "x" * 300])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    (found,) = load(str(tmp_path / name))
    assert isinstance(found, DocumentFailure)
    assert found.uri.isprintable()
    assert found.error.startswith("cannot be opened: ")


def test_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    try:
        assert one(path, "Hello.").uri.endswith("/caf%E9.txt")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    (found,) = load(tmp_path)
    assert isinstance(found, Document)
    found.uri.encode()


# ---------------------------------------------------------------- folders


def test_folder(tmp_path: Path) -> None:
    for name in (
        "b/readme.md",
        "a/readme.md",
        "a/.git/config",
        ".env",
        "logo.png",
        "NOTES",
        "tool",
        "z.txt",
        "empty.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (tmp_path / "tool").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "empty.txt").write_text("")
    found = [*load(tmp_path)]
    assert [item.uri for item in found if isinstance(item, Document)] == [
        (tmp_path / name).as_uri() for name in ("NOTES", "a/readme.md", "b/readme.md", "z.txt")
    ]
    assert [item for item in found if isinstance(item, DocumentFailure)] == [
        DocumentFailure((tmp_path / "empty.txt").as_uri(), "is empty")
    ]
    assert {item.path: item.reason for item in found if isinstance(item, SkippedFile)} == {
        str(tmp_path / ".env"): "is hidden",
        str(tmp_path / "a/.git"): "is hidden",
        str(tmp_path / "logo.png"): "has a type that is not read (.png)",
        str(tmp_path / "tool"): "is a binary file",
    }
    assert len(found) == 9


def test_links_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("Secret.")
    (folder / "real.txt").write_text("Hello.")
    (folder / "a-link.txt").symlink_to(folder / "real.txt")
    (folder / "loop").symlink_to(folder)
    (folder / "out.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "gone.txt").symlink_to(folder / "nothing.txt")
    found = [*load(folder)]
    assert [item.uri for item in found if isinstance(item, Document)] == [(folder / "real.txt").as_uri()]
    assert {Path(item.path).name: item.reason for item in found if isinstance(item, SkippedFile)} == {
        "loop": "is a symbolic link to a folder",
        "out.txt": "is a symbolic link out of the folder",
        "real.txt": f"is the same file as {folder / 'real.txt'}",
    }
    failures = {item.uri.rpartition("/")[2]: item.error for item in found if isinstance(item, DocumentFailure)}
    assert set(failures) == {"self.txt", "gone.txt"}
    assert failures["gone.txt"] == "cannot be opened: No such file or directory"


def test_root_and_laziness(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "b.txt").write_text("Two.")
    documents = load(".", root=tmp_path)
    assert isinstance(next(documents), Document)
    (tmp_path / "b.txt").write_text("Changed.")
    second = next(documents)
    assert isinstance(second, Document)
    assert second.body == "Changed."
    assert [*load("a.txt", root=tmp_path)] == [Document(uri=(tmp_path / "a.txt").as_uri(), body="One.")]


def test_stdin() -> None:
    assert [*load_stdin(io.BytesIO(b"Hello.\r\n"))] == [Document(uri="stdin:", body="Hello.\n")]
    assert [*load_stdin(io.BytesIO(b""), "stdin:x")] == [DocumentFailure("stdin:x", "is empty")]
    closed = io.BytesIO()
    closed.close()
    (found,) = load_stdin(closed)
    assert isinstance(found, DocumentFailure)


# ---------------------------------------------------------------- Markdown


def test_front_matter(tmp_path: Path) -> None:
    document = one(
        tmp_path / "a.md",
        "---\ntitle: 'Pay: runbook'\ndate: 2024-05-31\ntags: [ops, \"on call\"]\nlabels:\n  - pay\n  - ops\n"
        "owner: Wei Zhang\nversion: 3\nratio: 0.5\ndraft: false\n# comment\nnested:\n  key: value\n"
        "---\n# Heading\n\nText.\n",
    )
    assert document.title == "Pay: runbook"
    assert document.published_at == datetime(2024, 5, 31, tzinfo=UTC)
    assert document.labels == ("pay", "ops", "on call")
    assert document.metadata == {"owner": "Wei Zhang", "version": 3, "ratio": 0.5, "draft": False, "nested": None}
    assert document.body == "# Heading\n\nText.\n"
    assert document.mime == "text/markdown"


@pytest.mark.parametrize(
    "body",
    [
        "---\n\nA paragraph between rules.\n\n---\n\nMore.\n",
        "---\ntitle: never closed\n\nText.\n",
        "---\ntitle: nothing else\n---\n",
        "text\n---\ntitle: not at the start\n---\n",
    ],
)
def test_what_is_no_front_matter_stays_text(tmp_path: Path, body: str) -> None:
    document = one(tmp_path / "a.md", body)
    assert (document.body, document.metadata) == (body, {})


def test_odd_front_matter_values_do_not_fail(tmp_path: Path) -> None:
    document = one(tmp_path / "a.md", "---\ndate: last spring\ntags: 2024\nlabels: [a, ~]\ntitle:\n---\n# Pay #\n")
    assert document.metadata == {"date": "last spring"}
    assert document.labels == ("a", "2024")
    assert document.title == "Pay"


def test_markdown_title_is_the_first_heading_of_level_one(tmp_path: Path) -> None:
    assert one(tmp_path / "a.md", "```\n# code\n```\n\n## Two\n\n# One\n").title == "One"
    assert one(tmp_path / "readme.md", "Just text.\n").title == ""


# ---------------------------------------------------------------- HTML


def test_html(tmp_path: Path) -> None:
    page = """<!DOCTYPE html><html><head><title> Pay &amp;
      Go </title><style>p {}</style><script>var x = "<p>no</p>";</script></head><body>
      <nav><a href=/>Home</a></nav><!-- hidden -->
      <h1>Payment <em>service</em></h1>
      <p>It <b>re</b>funds   shops.<br>Second line.</p>
      <h3>Team</h3><ul><li>Wei <i>Zhang</i></li><li><p>Ana</p></li></ul>
      <table><tr><th>Name</th><th>Ci<b>ty</b></th></tr><tr><td><p>Wei</p><p>Zhang</p></td><td>Berlin</td></tr></table>
      <pre># not a heading
  indented</pre>
      <div>loose <span>text</span></div></body></html>"""
    document = one(tmp_path / "a.html", page)
    assert document.title == "Pay & Go"
    assert document.mime == "text/html"
    assert document.body == (
        "# Payment service\n\nIt refunds shops.\nSecond line.\n\n### Team\n\n- Wei Zhang\n- Ana\n\n"
        "| Name | City |\n| Wei Zhang | Berlin |\n\n```\n# not a heading\n  indented\n```\n\nloose text\n"
    )


def test_html_without_a_title_and_unclosed(tmp_path: Path) -> None:
    document = one(tmp_path / "a.htm", "<head><h1>Pay<p>One<p>Two &lt;b&gt;")
    assert document.title.startswith("Pay")
    assert one(tmp_path / "b.html", "<p>One<p>Two").body == "One\n\nTwo\n"
    assert one(tmp_path / "b.html", "<p>One<p>Two").title == ""
    assert failure(tmp_path / "c.html", "<script>only()</script>").error == "is empty"


def test_a_page_arranged_by_a_table_keeps_its_structure(tmp_path: Path) -> None:
    body = one(tmp_path / "a.html", "<table><tr><td><h2>Pay</h2><p>Text.</p></td><td>Side</td></tr></table>").body
    assert body == "## Pay\n\nText.\n\nSide\n"


@pytest.mark.parametrize(
    "data",
    [
        "<meta charset='gbk'><p>支付平台</p>".encode("gbk"),
        "<meta http-equiv=Content-Type content='text/html; charset=big5'><p>支付平台</p>".encode("big5"),
        "<meta charset='utf-8'><p>支付平台</p>".encode(),
        "<meta charset='nonsense'><p>支付平台</p>".encode(),
        "<meta charset='big5'><p>支付平台</p>".encode("utf-16"),
    ],
)
def test_html_charsets(tmp_path: Path, data: bytes) -> None:
    assert one(tmp_path / "a.html", data).body == "支付平台\n"


def test_xhtml_gives_no_warning(tmp_path: Path) -> None:
    page = '<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>Hi</p></body></html>'
    assert one(tmp_path / "a.html", page).body == "Hi\n"
    assert one(tmp_path / "b.html", "https://example.org/page").body == "https://example.org/page\n"


@pytest.mark.parametrize("tag", ["<div>", "<table><tr><td>", "<b>", "<h1>", "<li>", "<pre>"])
def test_html_nested_deeper_than_the_stack(tmp_path: Path, tag: str) -> None:
    begun = time.process_time()
    assert "deep" in one(tmp_path / "a.html", tag * 3_000 + "deep").body
    assert time.process_time() - begun < 10


# ---------------------------------------------------------------- JSON lines


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    lines = [
        {
            "id": "d 1",
            "title": "Pay",
            "text": "One.",
            "metadata": {"team": "a"},
            "year": 2024,
            "labels": ["x", "y"],
        },
        {"id": 7, "body": "Seven.", "published_at": "2024-05-31T10:00:00+02:00", "labels": "a, b"},
        {"uri": "https://example.org/x", "text": "Own uri."},
        {"text": "Neither."},
    ]
    path.write_text("\ufeff" + "\n".join(json.dumps(line) for line in lines) + "\n\n", "utf-8")
    uri = path.as_uri()
    assert [*load(path)] == [
        Document(f"{uri}#d%201", "One.", "Pay", metadata={"year": 2024, "team": "a"}, labels=("x", "y")),
        Document(f"{uri}#7", "Seven.", labels=("a", "b"), published_at=datetime(2024, 5, 31, 8, tzinfo=UTC)),
        Document("https://example.org/x", "Own uri."),
        Document(f"{uri}#line-4", "Neither."),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{broken", "is not valid JSON: "),
        ('["text"]', 'is no JSON object with "text"'),
        ('{"id": 1}', 'has no "text"'),
        ('{"text": 5}', 'has no "text"'),
        ('{"text": " "}', "is empty"),
        ('{"text": "x", "title": 5}', 'has a "title" that is no string'),
        ('{"text": "x", "metadata": [1]}', 'has "metadata" that is no object'),
        ('{"text": "x", "labels": {}}', 'has "labels"'),
        ('{"text": "x", "published_at": "soon"}', 'has a "published_at"'),
        ('{"text": "x", "published_at": "0001-01-01T00:00:00+10:00"}', 'has a "published_at"'),
        ('{"text": "x", "id": [1]}', 'has an "id"'),
        ('{"text": "x", "n": NaN}', "is not valid JSON: NaN"),
        ('{"text": "x", "n": ' + "[" * 150 + "]" * 150 + "}", "metadata is nested"),
        ("[" * 100_000, "is not valid JSON: nested too deeply"),
        ('{"text": "x", "n": ' + "9" * 5_000 + "}", "is not valid JSON"),
        ("\x00" * 50, "is a binary file"),
    ],
)
def test_a_bad_line_fails_alone(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "docs.jsonl"
    path.write_text('{"id": "a", "text": "First."}\n' + line + '\n{"id": "b", "text": "Last."}\n')
    first, bad, last = load(path)
    assert isinstance(first, Document)
    assert isinstance(last, Document)
    assert isinstance(bad, DocumentFailure)
    assert bad.uri == f"{path.as_uri()}#line-2"
    assert bad.error.startswith("docs.jsonl:2 ")
    assert problem in bad.error


def test_a_repeated_id_fails_the_later_document(tmp_path: Path) -> None:
    path = tmp_path / "docs.ndjson"
    path.write_text('{"id": 1, "text": "One."}\n{"id": "1", "text": "Again."}\n')
    first, second = load(path)
    assert isinstance(first, Document)
    assert second == DocumentFailure(
        f"{path.as_uri()}#line-2", f"docs.ndjson:2 repeats the document {path.as_uri()}#1; give each its own id"
    )


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgrag.documents.loaders, "MAX_BYTES", 2**20)
    path = tmp_path / "docs.jsonl"
    path.write_text(json.dumps({"text": "x" * 3 * 2**20}) + '\n{"text": "Last."}')
    long, last = load(path)
    assert long == DocumentFailure(f"{path.as_uri()}#line-1", "docs.jsonl:1 has more than 1 MB: split it")
    assert isinstance(last, Document)


def test_empty_and_utf16_json_lines(tmp_path: Path) -> None:
    assert failure(tmp_path / "a.jsonl", "\n \n").error == "is empty"
    assert (
        failure(tmp_path / "a.jsonl", '{"text": "x"}\n'.encode("utf-16")).error == "is UTF-16 text; convert it to UTF-8"
    )


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "docs.json"
    assert one(path, '{\n "id": 1,\n "text": "One."\n}').uri == f"{path.as_uri()}#1"
    path.write_text('{"id": 1, "text": "One."}\n{"id": 2, "text": "Two."}\n')
    assert [item.uri for item in load(path) if isinstance(item, Document)] == [f"{path.as_uri()}#{n}" for n in (1, 2)]
    path.write_text('[{"text": "One."}, {"no": 1}]')
    assert [*load(path)] == [
        Document(f"{path.as_uri()}#item-1", "One."),
        DocumentFailure(f"{path.as_uri()}#item-2", 'document 2 has no "text" (or "body") that is a string'),
    ]
    assert failure(path, "[1, 2").error.startswith("is not valid JSON: ")
    assert failure(path, "[]").error == "is empty"
