//! Commands as documents print them, so that a program can check that they can be typed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sources;

/// A command in a document of the repository.
pub struct Written {
    pub file: PathBuf,
    pub line: String,
    /// It is to be typed, and not only named within a sentence.
    pub is_typed: bool,
}

/// The words of a line up to a pipe, a redirection, a comment or an explanation; none if it does
/// not begin with `program`.
pub fn words(program: &str, line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = line.trim().chars().peekable();
    while let Some(character) = characters.next() {
        match (character, quote) {
            (it, Some(open)) if it == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (' ', None) => {
                words.extend(word.take());
                if characters.peek() == Some(&' ') {
                    break;
                }
            }
            ('|' | '>' | '#' | ';', None) if word.is_none() => break,
            (it, _) => word.get_or_insert_default().push(it),
        }
    }
    words.extend(word);
    // Variables stand before the command, and `...` means more of the same.
    let begin = words.iter().take_while(|it| it.contains('=')).count();
    words.drain(..begin);
    words.pop_if(|word| word == "...");
    match words.first().is_some_and(|word| word == program) {
        true => words,
        false => Vec::new(),
    }
}

fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        let name = path
            .file_name()
            .expect("a readable folder")
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !["target", "node_modules"].contains(&&*name) && !name.starts_with('.') {
                documents(&path, found);
            }
        // Records of a version or of a day need not hold for this version.
        } else if name.ends_with(".md") && !["CHANGELOG.md", "ARCHITECTURE.md"].contains(&&*name) {
            found.push(path);
        }
    }
}

/// Every command of `program` in the documents of the repository.
pub fn in_documents(program: &str) -> Vec<Written> {
    let lock = sources::file("Cargo.lock").expect("the sources are there");
    let (mut files, mut found) = (Vec::new(), Vec::new());
    documents(lock.parent().expect("a folder"), &mut files);
    for file in files {
        let text = fs::read_to_string(&file).expect("a readable document");
        let text = text.replace(" \\\n    ", " ");
        let mut is_block = false;
        for line in text.lines() {
            if line.starts_with("```") {
                is_block = !is_block;
                continue;
            }
            let is_typed = is_block || line.starts_with("    ");
            let lines: Vec<&str> = match is_typed {
                true => vec![line],
                false => line.split('`').skip(1).step_by(2).collect(),
            };
            for line in lines {
                if !words(program, line).is_empty() {
                    found.push(Written {
                        file: file.clone(),
                        line: line.to_owned(),
                        is_typed,
                    });
                }
            }
        }
    }
    found
}
