//! Files of one crate form no circle: no file uses a file that uses it, directly or through others.
//!
//! A use is a private `use` or a path in code. Each is followed through modules and re-exports to
//! the file that defines the item. `mod child;` and `pub use child::Item` alone are no uses, so a
//! parent may declare and re-export a child that builds on it. An item of another crate counts as
//! one of the file that re-exports it. Calls of methods are not seen. Items of `#[cfg(test)]` are
//! left out.
//!
//! A circle that must be is explained in the head comment of one of its files, on a line that
//! begins with `//! Circle: `.

#[path = "support/tokens.rs"]
mod tokens;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use tokens::{is_word, tokens, without_attributes_and_tests};

const EXCUSE: &str = "//! Circle: ";

/// Words before the name of an item.
const DEFINING: [&str; 8] = [
    "fn", "struct", "enum", "trait", "type", "const", "static", "union",
];

/// Longest chain of re-exports that is followed. A longer one is taken for another crate's item.
const REEXPORTS_MAX: usize = 12;

/// Segments of a path as written, or the place of a module in its crate.
type Segments = Vec<String>;

/// The names that each file uses of each other file.
type Uses = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

#[derive(Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    /// Names that `use` brings in, with the paths that they stand for.
    imports: Vec<(String, Segments)>,
    globs: Vec<Segments>,
    mentions: Vec<Segments>,
}

enum Found {
    Module(Segments),
    Item { file: String, name: String },
}

/// All modules of one crate.
#[derive(Default)]
struct Modules(BTreeMap<Segments, Module>);

impl Modules {
    /// Reads the crate of this root file. `read` gives the text of a file, if there is one.
    fn of(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut modules = Self::default();
        let mut files = vec![(Segments::new(), root.to_owned())];
        let sources = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        while let Some((place, file)) = files.pop() {
            let text = read(&file).unwrap_or_else(|| panic!("{file} is declared and not there"));
            let tokens = without_attributes_and_tests(&tokens(&text));
            for child in modules.scan(&tokens, &place, &file) {
                let file = format!("{sources}/{}.rs", child.join("/"));
                files.push((child, file));
            }
        }
        modules
    }

    /// Adds what one file holds, and returns the modules that other files hold.
    fn scan(&mut self, tokens: &[&str], place: &[String], file: &str) -> Vec<Segments> {
        let token = |at: usize| tokens.get(at).copied().unwrap_or_default();
        let mut children = Vec::new();
        let mut open = vec![(place.to_vec(), 0)];
        let (mut depth, mut at) = (0, 0);
        while at < tokens.len() {
            let Some((place, level)) = open.last().cloned() else {
                panic!("{file}: brackets do not match");
            };
            let module = self.0.entry(place.clone()).or_default();
            file.clone_into(&mut module.file);
            let previous = |back: usize| at.checked_sub(back).map_or("", token);
            match token(at) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => {
                    depth -= 1;
                    if depth < level {
                        open.pop();
                    }
                }
                "mod" if matches!(token(at + 2), ";" | "{") => {
                    let child = [place, vec![token(at + 1).to_owned()]].concat();
                    if token(at + 2) == ";" {
                        children.push(child);
                    } else {
                        depth += 1;
                        open.push((child, depth));
                    }
                    at += 2;
                }
                "use" if token(at + 1) != "<" => {
                    let is_public = matches!(previous(1), "pub" | ")");
                    at += 1;
                    module.add_use(tokens, &mut at, &Vec::new(), is_public);
                }
                "macro_rules" => {
                    module.items.insert(token(at + 2).to_owned());
                    at += 2;
                }
                word if depth == level
                    && DEFINING.contains(&word)
                    && is_word(token(at + 1))
                    && !DEFINING.contains(&token(at + 1)) =>
                {
                    module.items.insert(token(at + 1).to_owned());
                    at += 1;
                }
                word if is_word(word) => {
                    let is_field = previous(1) == "." && previous(2) != "."
                        || previous(1) == "::"
                        || token(at + 1) == ":" && word.starts_with(char::is_lowercase);
                    let mut path = vec![word.to_owned()];
                    while token(at + 1) == "::" && is_word(token(at + 2)) {
                        path.push(token(at + 2).to_owned());
                        at += 2;
                    }
                    if !is_field {
                        module.mentions.push(path);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        assert_eq!((depth, open.len()), (0, 1), "{file}: brackets do not match");
        children
    }

    fn resolve(&self, from: &[String], path: &[String], steps: usize) -> Option<Found> {
        let mut place = from.to_vec();
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" => place.clear(),
                "self" => {}
                "super" => {
                    place.pop();
                }
                name => match self.find(&place, name, index + 1 == path.len(), steps)? {
                    Found::Module(module) => place = module,
                    item @ Found::Item { .. } => return Some(item),
                },
            }
        }
        Some(Found::Module(place))
    }

    /// The meaning of a name in a module. A name may be a module and an item. Only an
    /// item ends a path.
    fn find(&self, place: &[String], name: &str, is_last: bool, steps: usize) -> Option<Found> {
        let steps = steps.checked_sub(1)?;
        let module = self.0.get(place)?;
        let child = [place, &[name.to_owned()]].concat();
        let child = self.0.contains_key(&child).then_some(Found::Module(child));
        if child.is_some() && !is_last {
            return child;
        }
        let own = Found::Item {
            file: module.file.clone(),
            name: name.to_owned(),
        };
        if module.items.contains(name) {
            return Some(own);
        }
        let mut imports = module.imports.iter().filter(|(known, _)| known == name);
        let is_imported = imports.clone().next().is_some();
        let found = imports.find_map(|(_, path)| self.resolve(place, path, steps));
        if let Some(found) = found.or(child) {
            return Some(found);
        }
        let of_globs = module.globs.iter().find_map(|glob| {
            let Found::Module(from) = self.resolve(place, glob, steps)? else {
                return None;
            };
            self.find(&from, name, is_last, steps)
        });
        // An item of another crate counts as one of the file that imports it.
        of_globs.or(is_imported.then_some(own))
    }

    /// The file and the name of a module that has no file of its own.
    fn inline(&self, place: &[String]) -> Option<(String, String)> {
        let (name, parent) = place.split_last()?;
        let file = &self.0.get(place)?.file;
        let is_inline = *file == self.0.get(parent)?.file;
        is_inline.then(|| (file.clone(), name.clone()))
    }

    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (place, module) in &self.0 {
            for path in &module.mentions {
                let (file, name) = match self.resolve(place, path, REEXPORTS_MAX) {
                    Some(Found::Item { file, name }) => (file, name),
                    Some(Found::Module(of)) => match self.inline(&of) {
                        Some(found) => found,
                        None => continue,
                    },
                    None => continue,
                };
                if file != module.file {
                    let of = uses.entry(module.file.clone()).or_default();
                    of.entry(file).or_default().insert(name);
                }
            }
        }
        uses
    }
}

impl Module {
    /// Adds one tree of a `use`, up to the mark after it.
    fn add_use(&mut self, tokens: &[&str], at: &mut usize, prefix: &Segments, is_public: bool) {
        let mut path = prefix.clone();
        let mut name = None;
        while let Some(&token) = tokens.get(*at) {
            match token {
                ";" | "," | "}" => break,
                "{" => {
                    while tokens.get(*at).is_some_and(|it| *it != "}") {
                        *at += 1;
                        self.add_use(tokens, at, &path, is_public);
                    }
                    *at += 1;
                    return;
                }
                "*" => {
                    self.globs.push(path.clone());
                    name = Some("*");
                }
                "as" => {
                    *at += 1;
                    name = tokens.get(*at).copied();
                }
                // A path of another crate, which no module has as a child.
                "::" if path.is_empty() => path.push(token.to_owned()),
                word if is_word(word) => path.push(word.to_owned()),
                _ => {}
            }
            *at += 1;
        }
        if path.len() > 1 && path.last().is_some_and(|it| it == "self") {
            path.pop();
        }
        let Some(last) = path
            .last()
            .filter(|_| path.len() > prefix.len() || name.is_some())
        else {
            return; // Nothing after the last comma of a group.
        };
        let name = name.map_or_else(|| last.clone(), str::to_owned);
        if !is_public {
            self.mentions.push(path.clone());
        }
        self.imports.push((name, path));
    }
}

/// Every set of files in which each reaches each by uses.
fn circles(uses: &Uses) -> BTreeSet<BTreeSet<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = uses
        .keys()
        .map(|begin| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![begin.as_str()]);
            while let Some(file) = next.pop() {
                let used = uses.get(file).into_iter().flat_map(BTreeMap::keys);
                next.extend(used.map(String::as_str).filter(|it| reached.insert(*it)));
            }
            (begin.as_str(), reached)
        })
        .collect();
    let files = reached.iter().filter(|(file, to)| to.contains(**file));
    files
        .map(|(file, to)| {
            let back = |other: &&str| reached.get(other).is_some_and(|it| it.contains(file));
            to.iter().copied().filter(back).collect()
        })
        .collect()
}

/// The files of a circle, and what each uses of which.
fn shown(circle: &BTreeSet<&str>, uses: &Uses) -> String {
    let mut lines = String::from("\n");
    for file in circle {
        lines += &format!("  {file}\n");
        for (of, names) in &uses[*file] {
            if circle.contains(of.as_str()) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                lines += &format!("    uses {} of {of}\n", names.join(", "));
            }
        }
    }
    lines
}

fn excuse(text: &str) -> Option<&str> {
    let mut head = text.lines().take_while(|line| line.starts_with("//!"));
    head.find_map(|line| line.strip_prefix(EXCUSE))
        .filter(|reason| !reason.is_empty())
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("two above").to_path_buf()
}

fn read(file: &str) -> Option<String> {
    fs::read_to_string(root().join(file)).ok()
}

/// Folders of the crates below a folder, as paths from the root.
fn crates(below: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(root().join(below)).unwrap_or_else(|e| panic!("{below}: {e}")) {
        let name = entry.expect("an entry").file_name();
        let folder = format!("{below}/{}", name.to_string_lossy());
        if root().join(&folder).join("Cargo.toml").is_file() {
            found.push(folder);
        } else if root().join(&folder).is_dir() {
            crates(&folder, found);
        }
    }
}

#[test]
fn files_of_a_crate_form_no_circle() {
    let mut folders = Vec::new();
    crates("services", &mut folders);
    crates("loadtest", &mut folders);
    assert!(folders.len() > 20, "only {} crates found", folders.len());
    let (mut found, mut stale, mut uses_seen) = (String::new(), Vec::new(), 0);
    for folder in &folders {
        for root in ["lib", "main"] {
            let root = format!("{folder}/src/{root}.rs");
            if read(&root).is_none() {
                continue;
            }
            let modules = Modules::of(&root, &read);
            let uses = modules.uses();
            uses_seen += uses.values().map(BTreeMap::len).sum::<usize>();
            let files: BTreeSet<&String> = modules.0.values().map(|it| &it.file).collect();
            let mut excused: BTreeMap<&str, String> = BTreeMap::new();
            for file in files {
                if let Some(reason) = read(file).as_deref().and_then(excuse) {
                    excused.insert(file, reason.to_owned());
                }
            }
            for circle in circles(&uses) {
                let reasons: Vec<String> = circle
                    .iter()
                    .filter_map(|file| Some(format!("{file}: {}", excused.remove(file)?)))
                    .collect();
                if reasons.is_empty() {
                    found += &shown(&circle, &uses);
                } else {
                    println!("allowed: {}", reasons.join("; "));
                }
            }
            stale.extend(excused.into_keys().map(str::to_owned));
        }
    }
    assert!(uses_seen > 1000, "only {uses_seen} uses found");
    assert!(found.is_empty(), "files use each other in a circle:{found}");
    assert!(
        stale.is_empty(),
        "these explain a circle and are in none: {stale:#?}"
    );
}

/// Circles of a crate whose files are given by name and text.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let read = |file: &str| {
        let found = files
            .iter()
            .find(|(name, _)| format!("src/{name}.rs") == file);
        found.map(|(_, text)| (*text).to_owned())
    };
    let uses = Modules::of("src/lib.rs", &read).uses();
    let circles = circles(&uses);
    circles.iter().map(|circle| shown(circle, &uses)).collect()
}

#[test]
fn a_circle_through_a_reexport_is_seen() {
    let found = circles_of(&[
        (
            "lib",
            "mod a; mod b; pub use a::One; pub use b::{Two, Two as Three};",
        ),
        (
            "a",
            "use crate::{Three, other::{self}}; pub struct One(Three);",
        ),
        ("b", "pub enum Two { Of(Box<super::One>) }"),
    ]);
    assert_eq!(
        found,
        ["\n  src/a.rs\n    uses Two of src/b.rs\n  src/b.rs\n    uses One of src/a.rs\n"]
    );
}

#[test]
fn a_parent_may_reexport_a_child_that_builds_on_it() {
    let child = "use super::Base; pub struct Child(Base); #[cfg(test)] mod tests { x }";
    let allowed = [
        ("lib", "mod child; pub use child::Child; pub struct Base;"),
        ("child", child),
    ];
    assert!(circles_of(&allowed).is_empty());
    let used = "mod child; pub use child::Child; type F = fn(); pub struct Base; fn f(_: Child) {}";
    assert_eq!(circles_of(&[("lib", used), ("child", child)]).len(), 1);
}

#[test]
fn tests_texts_and_comments_hold_no_uses() {
    let lib = r#"
        mod child;
        // child::Child
        const TEXT: &str = "child::Child \" child::Child";
        #[cfg(test)]
        use child::{Child};
        fn f<'a>(_: &'a str) -> char { '"' }
        pub struct Base { #[cfg(test)] child: child::Child, own: u8 }
        #[cfg(test)]
        mod tests { use super::child::Child; }
    "#;
    let child = "use super::Base; pub struct Child(Base);";
    assert!(circles_of(&[("lib", lib), ("child", child)]).is_empty());
    let used = lib.replace("'\"'", "child::Child");
    assert_eq!(circles_of(&[("lib", &used), ("child", child)]).len(), 1);
}
