//! Writes `docs/reference` from the command line and the sources, and fails if a page is outdated.
//!
//! `make reference` sets `BRAID_WRITE_REFERENCE`, which writes the pages instead of comparing them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use super::*;

mod errors;

/// Services whose flags, variables and keys of the file have a page.
const SERVICES: [&str; 7] = [
    "gateway",
    "proxy",
    "ingest",
    "alerting",
    "path-telemetry",
    "dashboard",
    "exchange",
];

fn root() -> PathBuf {
    let lock = testkit::sources::file("Cargo.lock").unwrap();
    lock.parent().unwrap().to_owned()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test = name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs");
        if path.is_dir() {
            if !is_test && !["target", "node_modules", "conformance", "testkit"].contains(&&*name) {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && !is_test {
            found.push(path);
        }
    }
}

/// Path below the root, and text without the unit tests at its end.
fn code() -> Vec<(String, String)> {
    let root = root();
    let mut files = Vec::new();
    sources(&root.join("services"), &mut files);
    files.sort();
    let texts = files.iter().map(|file| {
        let text = fs::read_to_string(file).unwrap();
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let path = file.strip_prefix(&root).unwrap();
        (path.display().to_string(), text.to_owned())
    });
    texts.collect()
}

/// One line of a table: no pipe, no line break.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|")
}

fn flags() -> String {
    let mut page = String::from(
        "# Flags, variables and keys\n\nA flag wins over its variable, a variable over the file. \
         In the file a key has the flag's name with\nunderscores, in the service's table. `make \
         reference` writes this page.\n",
    );
    let root = layered(None).unwrap();
    for noun in SERVICES {
        let command = root.find_subcommand(noun).unwrap();
        let _ = write!(
            page,
            "\n## {noun}\n\n| flag | variable | default | meaning |\n|---|---|---|---|\n"
        );
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long() else { continue };
            if long == "help" || long == "config" {
                continue;
            }
            let variable = arg.get_env().map(|it| it.to_string_lossy().into_owned());
            let defaults = arg.get_default_values().iter();
            let defaults: Vec<_> = defaults.map(|it| it.to_string_lossy()).collect();
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(
                page,
                "| `--{long}` | {} | {} | {} |",
                variable.map_or(String::new(), |it| format!("`{it}`")),
                cell(&defaults.join(",")),
                cell(&help),
            );
        }
    }
    page
}

fn metrics_page() -> String {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in code() {
        for name in text.split('"').skip(1).step_by(2) {
            let is_name = name.starts_with("braid_")
                && name
                    .chars()
                    .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
                && name.matches('_').count() >= 2;
            if is_name {
                found
                    .entry(name.to_owned())
                    .or_default()
                    .insert(file.clone());
            }
        }
    }
    let mut page = String::from(
        "# Metrics\n\nNames as the sources write them; labels and meaning are at the place named. \
         `make reference` writes\nthis page.\n\n| metric | written by |\n|---|---|\n",
    );
    for (name, files) in found {
        let files: Vec<String> = files.into_iter().map(|it| format!("`{it}`")).collect();
        let _ = writeln!(page, "| `{name}` | {} |", files.join(", "));
    }
    page
}

/// Name and value of a constant that this line declares, whatever its visibility.
fn constant(line: &str) -> Option<(&str, &str)> {
    let declared = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (name, rest) = declared.strip_prefix("const ")?.split_once(':')?;
    Some((name, rest.split_once('=')?.1))
}

/// Whether a constant's name says that it bounds something, with or without a unit behind.
fn is_bound(name: &str) -> bool {
    ["MAX", "LIMIT"]
        .iter()
        .any(|bound| name.split('_').skip(1).any(|part| part == *bound))
}

/// Up to the first full stop or semicolon that a space follows.
fn first_sentence(comment: &str) -> &str {
    let ends = comment.match_indices(['.', ';']);
    let mut ends = ends.map(|(at, _)| at + 1);
    let end = ends.find(|end| comment[*end..].starts_with(' '));
    &comment[..end.unwrap_or(comment.len())]
}

/// Whether a constant may share the comment of another one: both names end in the same two words.
fn may_share(name: &str, commented: &str) -> bool {
    let words = |name| str::rsplit(name, '_').take(2);
    words(name).eq(words(commented))
}

fn bounds() -> String {
    let mut page = String::from(
        "# Bounds\n\nConstants with `MAX` or `LIMIT` in their names, and the first sentence of their \
         comments. `make\nreference` writes this page.\n\n| bound | value | what it bounds | file |\n|---|---|---|---|\n",
    );
    for (file, text) in code() {
        // A constant without a comment may share the comment of the constants before it.
        let (mut comment, mut commented) = (String::new(), None);
        for line in text.lines() {
            let line = line.trim();
            if let Some(text) = line.strip_prefix("///") {
                if commented.take().is_some() {
                    comment.clear();
                }
                comment.push_str(text);
                continue;
            }
            if let Some((name, value)) = constant(line) {
                let commented = *commented.get_or_insert(name);
                if is_bound(name) {
                    assert!(
                        may_share(name, commented),
                        "{file}: {name} has no comment of its own below {commented}"
                    );
                    let value = cell(value.trim().trim_end_matches(';'));
                    let says = cell(first_sentence(&comment));
                    assert!(
                        !says.is_empty(),
                        "{file}: {name} says nothing of what it bounds"
                    );
                    let _ = writeln!(page, "| `{name}` | `{value}` | {says} | `{file}` |");
                }
            } else if !line.starts_with("#[") {
                (comment, commented) = (String::new(), None);
            }
        }
    }
    page
}

#[test]
fn the_reference_is_fresh() {
    let folder = root().join("docs/reference");
    let write = std::env::var_os("BRAID_WRITE_REFERENCE").is_some();
    let pages = [
        ("flags.md", flags()),
        ("metrics.md", metrics_page()),
        ("bounds.md", bounds()),
        ("errors.md", errors::page()),
    ];
    for (name, page) in pages {
        assert!(page.lines().count() > 50, "{name} lists next to nothing");
        let path = folder.join(name);
        if write {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, page).unwrap();
        } else {
            let is_fresh = fs::read_to_string(&path).is_ok_and(|there| there == page);
            assert!(is_fresh, "docs/reference/{name} is old: make reference");
        }
    }
}
