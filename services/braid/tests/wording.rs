//! Rules for comments and documents: columns, words of a sentence, and openings. Each measure
//! prints its worst findings, and fails above a bound that only falls.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Columns of a comment line. Tables, code blocks and lines with a link may be wider.
const COLUMNS_MAX: usize = 100;
/// Words of a sentence in a comment or document.
const WORDS_MAX: usize = 25;
/// Lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 100;
/// Words that stand for a noun at the beginning of a sentence.
const OPENINGS: [&str; 7] = [
    "What", "Whatever", "Who", "Whoever", "Whose", "Of", "Nobody",
];

/// Words of GLOSSARY's list "Words to avoid" that have no other meaning in comments and documents.
const AVOIDED: [&str; 8] = [
    "tells",
    "whoever",
    "stranger",
    "strangers",
    "nobody's",
    "rulebook",
    "company",
    "swing",
];

/// Lines wider than `COLUMNS_MAX`: the number that was measured last. Lower it with every
/// improvement, and never raise it.
const WIDE_LINES: usize = 0;
/// Sentences longer than `WORDS_MAX`; falls only, as above.
const LONG_SENTENCES: usize = 0;
/// Sentences that begin with one of `OPENINGS`; falls only, as above.
const OPENED_BY_PRONOUN: usize = 0;
/// Sentences of documents longer than `WORDS_MAX`; falls only, as above.
const LONG_SENTENCES_OF_DOCUMENTS: usize = 0;
/// Functions longer than `FUNCTION_LINES_MAX`; falls only, as above.
const LONG_FUNCTIONS: usize = 0;

/// Findings of each measure that are printed.
const WORST: usize = 10;

/// Lines of a comment with the same marker and indentation.
struct Block {
    first_line: usize,
    lines: Vec<String>,
}

struct Finding {
    file: String,
    line: usize,
    value: usize,
    text: String,
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("two above").to_path_buf()
}

/// Marks of comments, by the ending of a file's name.
const MARKERS: [(&[&str], &[&str]); 3] = [
    (
        &[".rs", ".ts", ".mjs", ".js", ".css", ".go", ".proto"],
        &["//!", "///", "//", "/**", "/*", "*"],
    ),
    (
        &[
            ".py",
            ".sh",
            ".yml",
            ".yaml",
            ".toml",
            ".env",
            ".conf",
            "Makefile",
            "Dockerfile",
        ],
        &["#"],
    ),
    (&[".sql"], &["--"]),
];

/// Folders of generated files, and of migrations, whose checksums installations have stored.
const NOT_OURS: [&str; 2] = ["/gen/", "/migrations/"];

fn markers(file: &str) -> Option<&'static [&'static str]> {
    let of_file = |(endings, _): &&(&[&str], _)| endings.iter().any(|it| file.ends_with(it));
    MARKERS.iter().find(of_file).map(|(_, markers)| *markers)
}

/// Sources with comments that people write, as paths from the root.
fn sources() -> Vec<String> {
    let is_source = |file: &String| {
        markers(file).is_some() && !NOT_OURS.iter().any(|folder| file.contains(folder))
    };
    let files: Vec<String> = files().into_iter().filter(is_source).collect();
    assert!(files.len() > 200, "only {} sources found", files.len());
    files
}

/// Documents that people write, but for the notes of trials (`docs/lab`).
fn documents() -> Vec<String> {
    let is_document = |file: &String| file.ends_with(".md") && !file.starts_with("docs/lab/");
    let files: Vec<String> = files().into_iter().filter(is_document).collect();
    assert!(files.len() > 100, "only {} documents found", files.len());
    files
}

fn files() -> Vec<String> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the tree");
    let listed = String::from_utf8(out.stdout).expect("paths are UTF-8");
    let files = listed.lines().map(str::to_owned);
    files.filter(|file| root().join(file).is_file()).collect()
}

/// Marker and text of a line that is a comment alone.
fn comment<'a>(file: &str, line: &'a str) -> Option<(&'a str, &'a str)> {
    let trimmed = line.trim_start();
    let markers = markers(file)?;
    if trimmed.starts_with("#!") || trimmed.starts_with("*/") {
        return None;
    }
    let is_marked = |marker: &&&str| {
        let rest = trimmed.strip_prefix(**marker);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let marker = markers.iter().find(is_marked)?;
    Some((&trimmed[..marker.len()], trimmed[marker.len()..].trim_end()))
}

fn blocks(file: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut before: Option<(usize, &str)> = None;
    for (index, line) in text.lines().enumerate() {
        let Some((marker, said)) = comment(file, line) else {
            before = None;
            continue;
        };
        let here = (line.len() - line.trim_start().len(), marker);
        let said = said.strip_prefix(' ').unwrap_or(said).to_owned();
        match blocks.last_mut() {
            Some(block) if before == Some(here) => block.lines.push(said),
            _ => blocks.push(Block {
                first_line: index + 1,
                lines: vec![said],
            }),
        }
        before = Some(here);
    }
    blocks
}

/// The prose of a document: no headings, tables, code blocks or marks, and one word for each code
/// span.
fn blocks_of_document(text: &str) -> Vec<Block> {
    let (mut blocks, mut in_code, mut in_block): (Vec<Block>, _, _) = (Vec::new(), false, false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        let is_prose = !in_code && !is_fence && !line.is_empty() && !line.starts_with(['|', '#']);
        if is_prose && !in_block {
            blocks.push(Block {
                first_line: index + 1,
                lines: Vec::new(),
            });
        }
        if let Some(block) = blocks.last_mut().filter(|_| is_prose) {
            block.lines.push(line.to_owned());
        }
        in_block = is_prose;
    }
    for block in &mut blocks {
        let text = without_marks(&block.lines.join("\n"));
        block.lines = text.lines().map(str::to_owned).collect();
    }
    blocks
}

/// Paragraphs of a block: no code, no table, no usage text, and each item of a list alone.
fn paragraphs(block: &Block) -> Vec<String> {
    let (mut all, mut current, mut in_code) = (Vec::new(), String::new(), false);
    for line in &block.lines {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let is_prose = !in_code && !line.starts_with("```") && !line.starts_with('|');
        let item = line.trim_start().split(' ').next().unwrap_or_default();
        let is_item = item == "-"
            || item
                .strip_suffix('.')
                .is_some_and(|number| !number.is_empty() && number.parse::<u32>().is_ok());
        let is_indented = line.starts_with("  ") && current.is_empty();
        if line.is_empty() || !is_prose || is_item {
            all.push(std::mem::take(&mut current));
        }
        if is_prose && !is_indented && !line.is_empty() {
            let text = line.trim_start();
            let text = if is_item { &text[item.len()..] } else { text };
            current += text.trim_start();
            current.push(' ');
        }
    }
    all.push(current);
    all.retain(|paragraph| !paragraph.trim().is_empty());
    all
}

/// Sentences end with a full stop, a question mark or an exclamation mark before a space.
fn sentences(paragraph: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    let bytes = paragraph.as_bytes();
    for at in 0..bytes.len() {
        let is_end = matches!(bytes[at], b'.' | b'?' | b'!');
        if !is_end {
            continue;
        }
        let follows = paragraph[at + 1..].trim_start().chars().next();
        let is_next = follows.is_none_or(|c| c.is_uppercase() || "`[(\"".contains(c));
        if bytes.get(at + 1) == Some(&b' ') && is_next {
            found.push(paragraph[begin..=at].trim());
            begin = at + 1;
        }
    }
    found.push(paragraph[begin..].trim());
    found.retain(|sentence| !sentence.is_empty());
    found
}

fn without_marks(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let text: String = parts
        .map(|(index, part)| if index % 2 == 0 { part } else { "Code" })
        .collect();
    text.replace("**", "")
}

fn words(sentence: &str) -> usize {
    let has_letter = |word: &&str| word.chars().any(char::is_alphanumeric);
    sentence.split_whitespace().filter(has_letter).count()
}

/// First line and length of each function; the code is formatted, so indentation ends it.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let words: Vec<&str> = code.split(' ').take(6).collect();
        let is_function = words.contains(&"fn")
            && ["pub", "fn ", "async", "const fn", "unsafe"]
                .iter()
                .any(|begin| code.starts_with(begin));
        if !is_function {
            continue;
        }
        let indent = line.len() - code.len();
        let end = format!("{}}}", " ".repeat(indent));
        let body = lines[index..].iter().take_while(|line| {
            let is_declaration =
                line.len() - line.trim_start().len() == indent && line.ends_with(';');
            **line != end && !is_declaration
        });
        found.push((index + 1, body.count() + 1));
    }
    found
}

fn finding(file: &str, line: usize, value: usize, text: &str) -> Finding {
    Finding {
        file: file.to_owned(),
        line,
        value,
        text: text.chars().take(90).collect(),
    }
}

#[derive(Default)]
struct Measured {
    wide: Vec<Finding>,
    avoided: Vec<Finding>,
    long: Vec<Finding>,
    opened: Vec<Finding>,
    functions: Vec<Finding>,
    columns: Vec<usize>,
    sentences: usize,
}

impl Measured {
    /// Counts the sentences of a block.
    fn read(&mut self, file: &str, block: &Block) {
        for paragraph in paragraphs(block) {
            let is_end = |c: char| !(c.is_alphanumeric() || "'`_-".contains(c));
            let mut of_paragraph = paragraph.split(is_end);
            if let Some(word) = of_paragraph.find(|word| AVOIDED.contains(&&*word.to_lowercase())) {
                let says = format!("{word}: {paragraph}");
                self.avoided.push(finding(file, block.first_line, 1, &says));
            }
            for sentence in sentences(&paragraph) {
                self.sentences += 1;
                let count = words(sentence);
                if count > WORDS_MAX {
                    self.long
                        .push(finding(file, block.first_line, count, sentence));
                }
                let opening = sentence.split(|c: char| !c.is_alphabetic()).next();
                if OPENINGS.contains(&opening.unwrap_or_default()) {
                    self.opened
                        .push(finding(file, block.first_line, count, sentence));
                }
            }
        }
    }

    fn look(&mut self, file: &str, text: &str) {
        let mut in_code = false;
        for (index, line) in text.lines().enumerate() {
            let Some((_, said)) = comment(file, line) else {
                in_code = false;
                continue;
            };
            if said.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            let columns = line.chars().count();
            self.columns.push(columns);
            let may_be_wide = in_code || said.contains("://") || said.trim_start().starts_with('|');
            if columns > COLUMNS_MAX && !may_be_wide {
                self.wide.push(finding(file, index + 1, columns, said));
            }
        }
        for block in blocks(file, text) {
            self.read(file, &block);
        }
        if file.ends_with(".rs") {
            for (line, length) in functions(text) {
                if length > FUNCTION_LINES_MAX {
                    self.functions.push(finding(file, line, length, ""));
                }
            }
        }
    }
}

/// Measures every source below the root.
fn measure() -> Measured {
    let mut measured = Measured::default();
    for file in sources() {
        let text = fs::read_to_string(root().join(&file)).expect("a source is text");
        measured.look(&file, &text);
    }
    measured.columns.sort_unstable();
    measured
}

/// Prints the worst findings, and fails above the bound.
fn check(rule: &str, mut found: Vec<Finding>, bound: usize) {
    found.sort_by(|a, b| b.value.cmp(&a.value).then(a.file.cmp(&b.file)));
    let mut crates: BTreeMap<String, usize> = BTreeMap::new();
    for finding in &found {
        let parts = finding.file.split('/').take(3).collect::<Vec<_>>();
        *crates.entry(parts.join("/")).or_default() += 1;
    }
    let mut text = format!("{rule}: {} findings, bound {bound}\n", found.len());
    for finding in found.iter().take(WORST) {
        let Finding {
            file,
            line,
            value,
            text: said,
        } = finding;
        let _ = writeln!(text, "  {file}:{line}: {value}: {said}");
    }
    for (part, count) in crates {
        let _ = writeln!(text, "    {count:5} {part}");
    }
    println!("{text}");
    assert!(found.len() <= bound, "{text}");
}

#[test]
fn comments_fit_the_columns() {
    let measured = measure();
    let columns = &measured.columns;
    let p90 = columns[columns.len() * 9 / 10];
    let most = columns.last().copied().unwrap_or_default();
    println!(
        "{} comment lines; columns p90 {p90}, max {most}",
        columns.len()
    );
    check("comment lines above 100 columns", measured.wide, WIDE_LINES);
}

#[test]
fn sentences_of_comments_are_short() {
    let measured = measure();
    println!("{} sentences of comments", measured.sentences);
    check("sentences above 25 words", measured.long, LONG_SENTENCES);
}

#[test]
fn words_to_avoid_are_avoided() {
    let glossary = fs::read_to_string(root().join("GLOSSARY.md")).expect("GLOSSARY.md is text");
    let (_, list) = glossary.split_once("## Words to avoid").expect("a list");
    for word in AVOIDED {
        assert!(list.contains(word), "GLOSSARY.md does not list {word}");
    }
    let mut found = measure().avoided;
    let of_documents = measure_documents().avoided;
    // The list names the words, and the log of changes may quote them.
    let may_name = ["GLOSSARY.md", "CHANGELOG.md"];
    found.extend(
        of_documents
            .into_iter()
            .filter(|it| !may_name.contains(&&*it.file)),
    );
    check("paragraphs with a word to avoid", found, 0);
}

fn measure_documents() -> Measured {
    let mut measured = Measured::default();
    for file in documents() {
        let text = fs::read_to_string(root().join(&file)).expect("a document is text");
        for block in blocks_of_document(&text) {
            measured.read(&file, &block);
        }
    }
    measured
}

#[test]
fn sentences_of_documents_are_short() {
    let measured = measure_documents();
    println!("{} sentences of documents", measured.sentences);
    check(
        "sentences of documents above 25 words",
        measured.long,
        LONG_SENTENCES_OF_DOCUMENTS,
    );
}

#[test]
fn sentences_of_comments_begin_with_their_noun() {
    let measured = measure();
    let share = 100.0 * measured.opened.len() as f64 / measured.sentences as f64;
    println!("{share:.1} % of the sentences begin with What, Who, Of or Nobody");
    check(
        "sentences that begin with What, Who, Of or Nobody",
        measured.opened,
        OPENED_BY_PRONOUN,
    );
}

#[test]
fn functions_are_short() {
    check(
        "functions above 100 lines",
        measure().functions,
        LONG_FUNCTIONS,
    );
}

#[test]
fn the_measures_see_what_they_count() {
    let wide = format!("// {}\n", "word ".repeat(30));
    let text = format!(
        "{wide}/// Of these. What comes goes.\n/// - one\n///   more\nfn f() {{\n{}}}\n",
        "    x();\n".repeat(100)
    );
    let mut measured = Measured::default();
    measured.look("a.rs", &text);
    assert_eq!((measured.wide.len(), measured.long.len()), (1, 1));
    assert_eq!(measured.opened.len(), 2);
    assert_eq!(measured.sentences, 4);
    assert_eq!(measured.functions[0].value, 102);
    assert_eq!(
        sentences("It takes 2.5 ms. (It may.) Yes."),
        ["It takes 2.5 ms.", "(It may.) Yes."]
    );
}
