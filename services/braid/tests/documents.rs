//! Rules for documents: length, columns, and lists that follow from the pages.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Columns of prose. Tables, code blocks and links may be wider.
const COLUMNS_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the manifest is two folders below the root")
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of documents") {
        let path = entry.expect("an entry of the folder").path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|it| it == "md") {
            found.push(path);
        }
    }
}

/// Lines of prose that are too wide: not in a code block, a table, or a line with a link.
fn wide_lines(text: &str) -> Vec<(usize, usize)> {
    let (mut wide, mut in_code) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let is_prose = !in_code
            && !line.trim_start().starts_with('|')
            && !line.starts_with("    ")
            && !line.contains("](");
        let columns = line.chars().count();
        if is_prose && columns > COLUMNS_MAX {
            wide.push((index + 1, columns));
        }
    }
    wide
}

#[test]
fn prose_of_documents_fits_the_columns() {
    let root = root();
    let mut found = Vec::new();
    for folder in ["docs", "infra", "charts", "loadtest"] {
        pages(&root.join(folder), &mut found);
    }
    let of_root = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "GLOSSARY.md",
    ];
    found.extend(of_root.map(|name| root.join(name)));
    assert!(found.len() > 100, "only {} documents found", found.len());
    let mut wide: Vec<(usize, String)> = Vec::new();
    for page in &found {
        let text = fs::read_to_string(page).expect("a document is text");
        for (line, columns) in wide_lines(&text) {
            wide.push((columns, format!("{}:{line}", page.display())));
        }
    }
    wide.sort_by(|a, b| b.cmp(a));
    wide.truncate(10);
    assert!(
        wide.is_empty(),
        "wider than {COLUMNS_MAX} columns: {wide:#?}"
    );
}

#[test]
fn the_first_documents_are_short() {
    let root = root();
    let words = |name: &str| {
        let text = fs::read_to_string(root.join(name)).expect("a document of the root");
        (text.lines().count(), text.split_whitespace().count())
    };
    assert!(
        words("README.md").0 <= 120,
        "README.md has more than 120 lines"
    );
    assert!(
        words("ARCHITECTURE.md").1 <= 2500,
        "ARCHITECTURE.md has more than 2,500 words"
    );
    let changes = fs::read_to_string(root.join("CHANGELOG.md")).expect("a document of the root");
    let unreleased = changes.lines().skip_while(|line| *line != "## Unreleased");
    let unreleased = unreleased
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    assert!(
        (1..=90).contains(&unreleased.count()),
        "Unreleased of CHANGELOG.md has no line or more than 90"
    );
}

#[test]
fn the_list_of_decisions_is_fresh() {
    runs("docs/decisions/index.sh", &["--check"]);
}

#[test]
fn the_contents_of_the_site_are_fresh() {
    runs("docs/site.py", &["summary", "--check"]);
}

fn runs(script: &str, arguments: &[&str]) {
    let output = Command::new(root().join(script))
        .args(arguments)
        .output()
        .expect("the script runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_wide_line_is_seen() {
    let wide = "x ".repeat(60);
    assert_eq!(wide_lines(&wide), [(1, 120)]);
    let code = format!("```\n{wide}\n```\n");
    assert!(wide_lines(&code).is_empty());
}
