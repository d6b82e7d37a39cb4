#!/usr/bin/env python3
"""Makes the documents a site.

  site.py summary            writes docs/SUMMARY.md, the contents of the site
  site.py summary --check    fails where it is old
  site.py assemble FOLDER    copies the pages for mdBook (`make docs`)

The site holds every tracked page of `FIRST` and `PARTS`, at the path that it has in the tree, so
relative links hold. A link to a file that is no page becomes text.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMMARY = ROOT / "docs/SUMMARY.md"
FIRST = ["README.md", "ARCHITECTURE.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md"]
# Title, and patterns of git. A page belongs to the first part that names it.
PARTS = [
    ("Operate", ["docs/operate/*.md", "infra/*.md", "charts/*.md", "loadtest/k6/*.md"]),
    ("Change", ["docs/change/*.md"]),
    ("Services", ["services/*/README.md", "loadtest/lab/README.md"]),
    ("Reference", ["docs/reference/*.md"]),
    ("Lab", ["docs/lab/*.md"]),
    ("Decisions", ["docs/decisions/*.md"]),
]
LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)\s]+)\)")


def tracked(pattern):
    """Pages that git tracks or would track: the README of a folder, then as it links them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pages = sorted(set(page for page in out.split() if (ROOT / page).is_file()))
    ordered = []
    for page in pages:
        if os.path.basename(page) == "README.md" and page not in ordered:
            ordered.append(page)
            links = (target(page, link[2]) for link in LINK.findall((ROOT / page).read_text()))
            ordered += [it for it in links if it in pages and it not in ordered]
    return ordered + [page for page in pages if page not in ordered]


def target(page, link):
    """The path in the tree that a link of `page` leads to."""
    path = link.split("#")[0]
    return os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page


def title(page):
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("# "):
            return re.sub(r"[\[\]]", "", line[2:].strip())
    sys.exit(f"{page}: no heading")


def contents():
    """Parts with their pages."""
    seen = set(FIRST)
    parts = []
    for name, patterns in PARTS:
        pages = [page for pattern in patterns for page in tracked(pattern) if page not in seen]
        seen.update(pages)
        parts.append((name, [page for page in pages if page != "docs/SUMMARY.md"]))
    return parts


def summary(base):
    """The list, with links as from the folder `base`."""
    link = lambda page: os.path.relpath(page, base or ".")
    lines = ["# Summary", ""]
    lines += [f"[{title(page)}]({link(page)})" for page in FIRST[:1]]
    lines += [""] + [f"- [{title(page)}]({link(page)})" for page in FIRST[1:]]
    for name, pages in contents():
        lines += ["", f"# {name}", ""]
        lines += [f"- [{title(page)}]({link(page)})" for page in pages]
    return "\n".join(lines) + "\n"


def place(page):
    """Where the site has a page: the page of a folder is its index."""
    folder, name = os.path.split(page)
    return os.path.join(folder, "index.md") if name == "README.md" else page


def assemble(folder):
    src = pathlib.Path(folder) / "src"
    shutil.rmtree(folder, ignore_errors=True)
    src.mkdir(parents=True)
    for name in ["book.toml", "site.css"]:
        shutil.copy(ROOT / "docs" / name, folder)
    pages = FIRST + [page for _, of_part in contents() for page in of_part]

    def to_site(page):
        def link(found):
            mark, text, to = found.groups()
            if "://" in to or to.startswith(("#", "mailto:")):
                return found[0]
            path = target(page, to)
            if (ROOT / path / "README.md").is_file():
                path = os.path.join(path, "README.md")
            anchor = "#" + to.split("#")[1] if "#" in to else ""
            if path in pages:
                path = os.path.relpath(place(path), os.path.dirname(page) or ".")
                return f"{mark}[{text}]({path}{anchor})"
            if mark and (ROOT / path).is_file():
                copy = src / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, copy)
                return found[0]
            return text

        return LINK.sub(link, (ROOT / page).read_text())

    for page in pages:
        copy = src / place(page)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(to_site(page))
    (src / "SUMMARY.md").write_text(summary("").replace("README.md)", "index.md)"))
    print(f"{len(pages)} pages")


def main():
    match sys.argv[1:]:
        case ["summary"]:
            SUMMARY.write_text(summary("docs"))
        case ["summary", "--check"]:
            if not SUMMARY.is_file() or SUMMARY.read_text() != summary("docs"):
                sys.exit("docs/SUMMARY.md is old: run docs/site.py summary")
        case ["assemble", folder]:
            assemble(folder)
        case _:
            sys.exit(__doc__)


main()
